"""The bundler turns the front end into one script, and refuses what it does not understand."""

from __future__ import annotations

import pytest

from srmlab.explorer.bundle import BundleError, bundle, shadow_styles


def test_modules_come_after_what_they_import_and_only_once():
    script = bundle(
        "main.js",
        {
            "main.js": 'import { a } from "./views/a.js";\nimport { c } from "./c.js";\nexport const '
            "all = a + c;",
            "views/a.js": 'import { c } from "../c.js";\nexport const a = c;\nconst hidden = 1;',
            "c.js": "export const c = 2;",
        },
    )
    assert script.count("const c = 2;") == 1
    assert script.index("const c = 2;") < script.index("const a = c;") < script.index("const all = a + c;")
    assert "return { a };" in script


def test_a_default_export_can_be_imported():
    script = bundle(
        "m.js",
        {
            "m.js": 'import U from "./u.js";\nexport function f() { return U; }',
            "u.js": "class X {}\nexport { X as default };",
        },
    )
    assert "return { default: X };" in script
    assert "const { default: U } = module_0;" in script


@pytest.mark.parametrize(
    ("sources", "complaint"),
    [
        ({"m.js": 'import * as all from "./a.js";', "a.js": ""}, "cannot bundle"),
        ({"m.js": "export default 5;"}, "cannot bundle"),
        ({"m.js": 'import { a } from "./gone.js";'}, "not there"),
        ({"m.js": 'import { a } from "./a.js";', "a.js": 'import { m } from "./m.js";'}, "circle"),
    ],
)
def test_what_it_does_not_know_is_refused(sources, complaint):
    with pytest.raises(BundleError, match=complaint):
        bundle("m.js", sources)


@pytest.mark.parametrize("entry", ["main.js", "report.js", "widget.js"])
def test_the_real_modules_bundle_and_cannot_end_their_own_script(entry):
    script = bundle(entry)
    assert "</script" not in script
    assert "entry_module" in script


def test_the_shadow_styles_have_no_root_and_no_body():
    css = shadow_styles()
    assert ":root" not in css
    assert "body {" not in css
    assert ':host([data-theme="dark"])' in css
