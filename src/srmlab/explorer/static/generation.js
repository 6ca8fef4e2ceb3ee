// Generate: the prompt continued, by a seed, with or without the intervention and early exit.

import { REAL, START } from "./store.js";

const $ = (id) => document.getElementById(id);

export function generation(app, info, prompt, say) {
  const { store } = app;
  const fields = {
    count: $("count"),
    temperature: $("temperature"),
    seed: $("seed"),
    exit: $("exit").querySelector("input"),
  };
  const steered = $("under").querySelector("input");
  let last = null; // { from, made }: what the last one continued, and the tokens it made of it

  // A field's number: the chosen one, which may come from a link, within its bounds.
  function chosen(name) {
    const { min, max } = fields[name];
    return Math.max(Number(min), Math.min(Number(max), store.get(name)));
  }

  function show() {
    for (const [name, field] of Object.entries(fields))
      if (field !== document.activeElement) field.value = name === "exit" ? chosen(name) || "" : chosen(name);
    steered.checked = store.get("steered");
  }

  for (const [name, field] of Object.entries(fields)) {
    field.addEventListener("input", () => {
      const typed = field.value === "" ? START[name] : Number(field.value);
      store.set({ [name]: REAL.has(name) ? typed : Math.floor(typed) });
    });
    field.addEventListener("blur", show); // what is out of bounds was not taken
  }
  steered.addEventListener("change", () => store.set({ steered: steered.checked }));
  store.subscribe(show);
  show();

  async function generate(from = prompt.given()) {
    if (app.isAsking("generate")) return app.client.cancel("generate");
    $("generate").textContent = "Stop";
    say("generating …");
    const line = prompt.line.value;
    const began = performance.now();
    const made = await app.ask("generate", "/api/generate", {
      ...from,
      count: chosen("count"),
      temperature: chosen("temperature"),
      seed: chosen("seed"),
      ...(info.exits && chosen("exit") ? { exit: chosen("exit") } : {}),
      ...prompt.weights(),
      ...(store.get("steered") && app.isIntervening() ? { intervention: app.intervention() } : {}),
    });
    $("generate").textContent = "Generate";
    if (made === undefined && !app.isAsking("trace")) say("stopped");
    if (!made) return;
    if (!made.added) return say(`the prompt has reached the limit of ${info.max_tokens} tokens`, true);
    const changes = { prompt: made.text, token: made.tokens.length - 1, rangeEnd: null, brush: [] };
    if (!(await app.load({ tokens: made.tokens, ...prompt.weights() }, changes))) return;
    last = { from, made: String(made.tokens) };
    prompt.write(prompt.line.value === line ? made.text : prompt.line.value); // not over what was typed since
    const levels =
      made.mean_levels === null
        ? ""
        : ` · ${made.mean_levels.toFixed(1)} of ${info.layers} ${info.level_name} used`;
    say(`${made.added} tokens in ${Math.round(performance.now() - began)} ms${levels}`);
  }

  // The same again by the next seed, in place of what was made last.
  function reroll() {
    store.set({ seed: chosen("seed") + 1 });
    const isLast = last && !prompt.isEdited() && last.made === String(app.tokens());
    return generate(isLast ? last.from : prompt.given());
  }

  document.querySelector(".generate").style.display = info.generates ? "" : "none";
  $("exit").hidden = !info.exits;
  $("generate").addEventListener("click", () => generate());
  $("reroll").addEventListener("click", reroll);
}
