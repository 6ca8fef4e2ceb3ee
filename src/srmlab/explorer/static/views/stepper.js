// The recursion stepper: every step of every layer as one tick, in bands of the step function it called.
// At each tick the logit lens, the relative change of the selected stream, its norm, and its drift since the
// layer before. Space plays.

import { scaleFor, streamColor } from "../color.js";
import { fine, number, player, range, short } from "../dom.js";
import { colorbar } from "../heatmap.js";
import { layerNames } from "../lanes.js";
import { argmax, mean } from "../measures.js";
import { STEPS } from "../palette.js";

const LINE = 16; // pixels for the words of the selected step, where its column is too narrow

export const stepper = {
  name: "stepper",
  title: "Recursion stepper",
  place: "wide",
  needs: ["lens_ids", "lens_logprob", "target", "step_change", "state_norm"],
  shows:
    "The state after every step of every layer: top tokens by the logit lens, relative change, RMS norm and drift.",
  reading:
    "One column = one step; curves are for the selected token, with the selected stream in colour; space plays.",
  terms: ["step", "layer", "state", "drift"],
  uses: ["token", "stream", "layer", "step"],
  stretches: true,

  caption(trace) {
    const change = range(trace.N, (n) => {
      const size = trace.T * trace.S;
      return mean(trace.data("step_change").subarray(n * size, (n + 1) * size));
    });
    const letters = trace.manifest.letters;
    const means = letters.map((letter) => mean(change.filter((_, n) => trace.letter(n) === letter)));
    const most =
      letters.length === 1
        ? `A step changes the state by ${means[0].toFixed(2)} of its norm on average`
        : `Step function ${letters[argmax(means)]} changes the state most, relative to its norm ` +
          `(${letters.map((letter, i) => `${letter} ${means[i].toFixed(2)}`).join(", ")})`;
    return (
      `${most}; the first step changes it by ${change[0].toFixed(2)}, the last by ` +
      `${change.at(-1).toFixed(2)}.`
    );
  },

  mount(panel, ctx) {
    const { store } = ctx;
    const isLast = () => ctx.tick() >= ctx.trace.N - 1;
    const play = player(
      "Play (space)",
      "",
      350,
      () => isLast() && ctx.goto(0),
      () => {
        ctx.goto(ctx.tick() + 1);
        return !isLast();
      },
    );
    ctx.togglePlay = play.toggle;
    panel.controls.append(play);

    // Where a column has no room for a word, those of the selected one stand below.
    const hasWords = (width) => (width - 80) / (ctx.trace.N + (ctx.trace.hasPost ? 1 : 0)) >= 17;

    // Three curves over ticks for one stream at the selected token.
    function curve(name, tick, token, stream) {
      const { trace } = ctx;
      if (name !== "drift") return trace.at(name, tick, token, stream);
      const layer = Math.floor(tick / trace.steps);
      return layer === 0 || !trace.has("drift_cosine")
        ? NaN
        : trace.at(
            "drift_cosine",
            layer - 1,
            trace.manifest.letters.indexOf(trace.letter(tick)),
            token,
            stream,
          );
    }

    function curves(pen, left, top, column, tall, theme) {
      const { N, S } = ctx.trace;
      const { token, stream } = store.state;
      [
        ["step_change", "change"],
        ["state_norm", "state rms"],
        ["drift", "drift"],
      ].forEach(([name, label], row) => {
        const y = top + row * (tall + 8);
        const all = range(S, (s) => range(N, (n) => curve(name, n, token, s)));
        const finite = all.flat().filter(Number.isFinite);
        const most = Math.max(0, ...finite.map(Math.abs));
        const high = Math.max(most, 1e-6);
        const low = ctx.trace.pair ? -high : 0;
        pen.path(`M${left} ${y + tall}h${N * column}`, { stroke: theme.faint });
        pen.text(label, left - 6, y + 14, { ...theme.small, align: "right" });
        const extent = ctx.trace.pair ? (most ? `±${fine(most)}` : "no change") : `max ${fine(most)}`;
        pen.text(finite.length ? extent : "–", left - 6, y + 26, {
          color: theme.dim,
          size: 9,
          align: "right",
        });
        all.forEach((values, s) => {
          const points = values
            .map((value, n) => [
              left + (n + 0.5) * column,
              y + tall - ((value - low) / (high - low)) * (tall - 3),
            ])
            .filter(([, v]) => Number.isFinite(v));
          const chosen = s === stream;
          if (points.length)
            pen.path(`M${points.map((p) => p.map((v) => v.toFixed(1)).join(" ")).join("L")}`, {
              stroke: streamColor(s, S),
              width: chosen ? 2 : 0.7,
              opacity: chosen ? 1 : 0.25,
            });
        });
      });
    }

    const natural = (width) => 44 + ctx.trace.K * 17 + 150 + (hasWords(width) ? 0 : LINE);

    return {
      height: natural,
      render(pen, width, height, theme) {
        const { trace } = ctx;
        const { N, L, K, steps } = trace;
        const { token } = store.state;
        const rows = K,
          left = 76,
          top = 34,
          tall = 17;
        const columns = N + (trace.hasPost ? 1 : 0);
        const column = (width - left - 4) / columns;
        const values = [];
        for (let k = 0; k < rows; k++)
          for (let n = 0; n < columns; n++) values.push(trace.at("lens_logprob", n, token, k));
        const colors = scaleFor(trace, values, -6, 0);
        layerNames(pen, L, (l) => left + l * steps * column, 11, store.get("layer"), theme);
        if (trace.hasPost)
          pen.text("out", left + (N + 0.5) * column, 11, { ...theme.small, align: "middle" });
        for (let n = 0; n < N; n++) {
          const letter = trace.letter(n);
          pen.rect(left + n * column, 16, column - 1, 14, {
            fill: STEPS[trace.manifest.letters.indexOf(letter) % STEPS.length],
          });
          if (column > 9)
            pen.text(letter, left + (n + 0.5) * column, 27, {
              color: "#fff",
              size: 10,
              weight: 600,
              align: "middle",
            });
        }
        pen.cells(left, top, column * columns, rows * tall, rows, columns, colors.paint(values));
        for (let k = 0; k < rows; k++) {
          pen.text(k === 0 ? "top 1" : `${k + 1}`, left - 6, top + k * tall + 12, {
            ...theme.small,
            align: "right",
          });
          const fits = Math.floor((column - 4) / 6.2);
          if (fits < 2) continue;
          for (let n = 0; n < columns; n++) {
            const id = trace.at("lens_ids", n, token, k);
            const value = values[k * columns + n];
            pen.text(short(trace.string(id), fits), left + (n + 0.5) * column, top + k * tall + 12, {
              color: colors.ink(value),
              size: 10,
              mono: true,
              align: "middle",
              weight: id === trace.at("target", token) ? 700 : 400,
            });
          }
        }
        for (let l = 1; l <= L; l++)
          if (l < L || trace.hasPost)
            pen.path(`M${left + l * steps * column - 0.5} ${top}v${rows * tall}`, {
              stroke: theme.panel,
              width: 2,
            });
        if (!hasWords(width)) {
          const ids = range(K, (k) => short(trace.string(trace.at("lens_ids", ctx.tick(), token, k)), 8));
          pen.text(ids.join("  "), left, top + rows * tall + 14, { color: theme.ink, size: 11, mono: true });
        }
        const below = top + rows * tall + (hasWords(width) ? 10 : 10 + LINE);
        curves(pen, left, below, column, 34 + Math.max(0, height - natural(width)) / 3, theme);
        const isPartial = colors.isNone && values.some(Number.isNaN); // of the grey ones nothing is known
        const whose = isPartial ? "log-probability of words listed before, nats" : "log-probability, nats";
        colorbar(pen, left, height - 12, 260, colors, whose, theme);
        pen.rect(left + ctx.tick() * column, 14, column, height - 34, {
          stroke: theme.mark,
          width: 1.5,
          radius: 2,
        });
        pen.region({ x: left, y: 0, w: N * column, h: height, rows: 1, columns: N });
      },
      update() {
        if (!ctx.trace) return;
        const { token, stream, layer, step } = store.state;
        panel.note.textContent =
          `${ctx.trace.place(token)} · layer ${layer}, step ` +
          `${step} (${ctx.trace.letter(ctx.tick())}) · S${stream}` +
          (ctx.trace.pair ? ` · grey: not among the first ${ctx.trace.K} before` : "");
      },
      tip(hit) {
        const { trace } = ctx;
        const { token, stream } = store.state;
        const n = hit.column;
        const tokens = range(
          trace.K,
          (k) =>
            `${short(trace.string(trace.at("lens_ids", n, token, k)), 10)} ` +
            (trace.pair
              ? `Δ ${number(trace.at("lens_logprob", n, token, k))}`
              : `${number(Math.exp(trace.at("lens_logprob", n, token, k)) * 100, 1)} %`),
        );
        return (
          `layer ${Math.floor(n / trace.steps)}, step ${n % trace.steps} (${trace.letter(n)})\n` +
          `${tokens.join(" · ")}\n` +
          `S${stream}: change ${number(curve("step_change", n, token, stream))}, rms ` +
          `${number(curve("state_norm", n, token, stream))}, drift ` +
          `${number(curve("drift", n, token, stream), 3)}`
        );
      },
      click: (hit) => ctx.goto(hit.column),
      table() {
        const { trace } = ctx;
        const { token, stream } = store.state;
        const rows = range(trace.N, (n) => [
          Math.floor(n / trace.steps),
          n % trace.steps,
          trace.letter(n),
          ...range(trace.K, (k) => trace.string(trace.at("lens_ids", n, token, k))),
          ...["step_change", "state_norm", "drift"].map((name) => curve(name, n, token, stream)),
        ]);
        return {
          columns: [
            "layer",
            "step",
            "function",
            ...range(trace.K, (k) => `top_${k + 1}`),
            `change_S${stream}`,
            `rms_S${stream}`,
            `drift_S${stream}`,
          ],
          rows,
        };
      },
      python: () =>
        ctx.code.of(
          `token, stream = ${store.get("token")}, ${store.get("stream")}`,
          '[[trace.string(i) for i in row] for row in trace["lens_ids"][:, token]]   # [tick][rank]',
          'trace["step_change"][:, token, stream]',
          'trace["state_norm"][:, token, stream]                                   # rms',
          'trace["drift_cosine"][:, :, token, stream]                              # [transition, group]',
        ),
    };
  },
};
