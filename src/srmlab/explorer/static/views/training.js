// Training: one number of the run over its checkpoints, as `srmlab analyze` measured it; a click goes to one.

import { h, number } from "../dom.js";
import { penLines, plotBox } from "../lines.js";

export const training = {
  name: "training",
  title: "Training",
  place: "lower left",
  stretches: true,
  needs: ["tokens"],
  shows: "One number at each checkpoint of the run, measured over evaluation text by srmlab analyze.",
  reading:
    "The band is two standard errors either way; a full dot is a checkpoint that is there, and a click shows every " +
    "view with its weights.",
  uses: ["curve", "checkpoint", "dynamics"],
  versions: false,

  available: ({ client, info }) => client !== null && info.results.includes("dynamics"),

  mount(panel, ctx) {
    const { store, info } = ctx;
    const pick = h("select", {
      "aria-label": "Number shown",
      onchange: () => store.set({ curve: pick.value }),
    });
    panel.controls.append(pick);
    let asked = false;
    let found; // { steps, curves: { name: { values, errors, unit } }, tokens }; null when there is no answer

    async function load() {
      asked = true;
      const result = await ctx.ask("dynamics", "/api/results/dynamics");
      found = result && result.over_training;
      store.touch("dynamics");
      if (!found) return;
      pick.append(
        ...Object.keys(found.curves).map((name) => h("option", { value: name }, name.replaceAll("_", " "))),
      );
    }

    const shown = () =>
      store.get("curve") in found.curves ? store.get("curve") : Object.keys(found.curves)[0];
    const kept = info.checkpoints.map((name) => Number(name.replace("step-", "")));

    // The weights of a step by their name, "" for the model as it was opened; undefined where they are not kept.
    function weightsOf(step) {
      if (step === found.steps.at(-1) && kept.every((other) => other <= step)) return "";
      return kept.includes(step) ? `step-${step}` : undefined;
    }

    function spec(theme) {
      const { values, errors } = found.curves[shown()];
      const off = (i, by) => values[i] + by * 2 * (errors[i] ?? 0);
      return {
        x: found.steps,
        series: [{ label: shown(), values, color: theme.ink, width: 1.5 }],
        band: { low: values.map((_, i) => off(i, -1)), high: values.map((_, i) => off(i, 1)) },
        xTitle: "training step",
      };
    }

    return {
      update(keys) {
        if (found === null && keys.has("base")) asked = false; // the server may be there by now
        if (!found) return;
        pick.value = shown();
        panel.note.textContent = `${found.curves[shown()].unit} · ${found.tokens.toLocaleString("en")} tokens`;
      },
      height: () => 170,
      render(pen, width, height, theme) {
        if (!asked) load();
        if (!found) {
          const why = found === null ? "The server did not answer." : "asking the server …";
          pen.text(why, 8, 24, { color: theme.dim, size: 11 });
          return;
        }
        const box = { x: 0, y: -8, w: width, h: height + 8 };
        const chart = spec(theme);
        const at = penLines(pen, box, chart, theme);
        const { top, height: tall } = plotBox(box, chart);
        const { steps } = found;
        steps.forEach((step, i) => {
          const x = at.x(step);
          const name = weightsOf(step);
          const isHere = name !== undefined && name === (store.get("checkpoint") || "");
          const r = isHere ? 5 : 3.5;
          pen.rect(x - r, at.y(chart.series[0].values[i]) - r, 2 * r, 2 * r, {
            fill: isHere ? theme.mark : name === undefined ? theme.panel : theme.ink,
            stroke: isHere ? theme.mark : theme.ink,
            radius: r,
          });
          const [before, after] = [steps[i - 1] ?? step, steps[i + 1] ?? step].map(
            (one) => (at.x(one) + x) / 2,
          );
          pen.region({
            x: i ? before : x - 8,
            y: top,
            w: (i < steps.length - 1 ? after : x + 8) - (i ? before : x - 8),
            h: tall,
            rows: 1,
            columns: 1,
            index: i,
          });
        });
      },
      tip({ index }) {
        const step = found.steps[index];
        const { values, errors } = found.curves[shown()];
        const error = errors[index] === null ? "" : ` ± ${number(errors[index], 3)}`;
        const hint =
          weightsOf(step) === undefined ? "its weights are not kept" : "click: every view with its weights";
        return `step ${step}   ${shown().replaceAll("_", " ")} ${number(values[index], 3)}${error}\n${hint}`;
      },
      click({ index }) {
        const checkpoint = weightsOf(found.steps[index]);
        if (checkpoint !== undefined) ctx.goToCheckpoint(checkpoint);
      },
      table: () => ({
        columns: ["step", ...(found ? Object.keys(found.curves) : [])],
        rows: (found?.steps ?? []).map((step, i) => [
          step,
          ...Object.values(found.curves).map(({ values }) => values[i]),
        ]),
      }),
      python: () =>
        [
          ctx.code.preamble(false),
          'found = srmlab.analysis.load(f"{run}/analysis/dynamics")',
          `found.steps, found.${found ? shown() : "loss"}`,
        ].join("\n"),
    };
  },
};
