"""The bundler turns the front end into one script, and refuses what it does not understand."""

from __future__ import annotations

import re

import pytest

from srmlab.explorer.bundle import BundleError, bundle
from srmlab.explorer.frontend import script, shadow_styles


def test_modules_come_after_what_they_import_and_only_once():
    code = bundle(
        "main.js",
        {
            "main.js": 'import { a } from "./views/a.js";\nimport { c } from "./c.js";\nexport const '
            "all = a + c;",
            "views/a.js": 'import { c } from "../c.js";\nexport const a = c;\nconst hidden = 1;',
            "c.js": "export const c = 2;",
        },
    )
    assert code.count("const c = 2;") == 1
    assert code.index("const c = 2;") < code.index("const a = c;") < code.index("const all = a + c;")
    assert "return { a };" in code


def test_a_default_export_can_be_imported():
    code = bundle(
        "m.js",
        {
            "m.js": 'import U from "./u.js";\nexport function f() { return U; }',
            "u.js": "class X {}\nexport { X as default };",
        },
    )
    assert "return { default: X };" in code
    assert "const { default: U } = module_0;" in code


def test_an_import_can_be_renamed():
    code = bundle("m.js", {"m.js": 'import { a as b } from "./a.js";', "a.js": "export const a = 1;"})
    assert "const { a: b } = module_0;" in code


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
    code = script(entry)
    assert "</script" not in code
    assert "entry_module" in code


def test_the_shadow_styles_have_no_root_and_no_body():
    css = shadow_styles()
    assert ":root" not in css
    assert not re.search(r"(?<![\w.-])body\b", css)  # the element; .body is a class of the page
    assert ".body {" in css
    assert ':host([data-theme="dark"])' in css
