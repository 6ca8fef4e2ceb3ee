// Generate: the prompt continued, by a seed, with or without the intervention and early exit.

const $ = (id) => document.getElementById(id);

export function generation(app, info, prompt, say) {
  let last = null; // { from, made }: what the last one continued, and the tokens it made of it
  const count = () => Math.max(1, Math.min(64, Number($("count").value) || 8));
  const seed = () => Math.max(0, Math.floor(Number($("seed").value)) || 0);
  const tolerance = () => (info.exits ? Math.max(0, Number($("exit").querySelector("input").value)) || 0 : 0);

  async function generate(from = prompt.given()) {
    if (app.isAsking("generate")) return app.client.cancel("generate");
    $("generate").textContent = "Stop";
    say("generating …");
    const line = prompt.line.value;
    const began = performance.now();
    const made = await app.ask("generate", "/api/generate", {
      ...from,
      count: count(),
      temperature: Math.max(0, Number($("temperature").value) || 0),
      seed: seed(),
      ...(tolerance() ? { exit: tolerance() } : {}),
      ...prompt.weights(),
      ...($("intervened").checked && app.isIntervening() ? { intervention: app.intervention() } : {}),
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
    $("seed").value = String(seed() + 1);
    const isLast = last && !prompt.isEdited() && last.made === String(app.tokens());
    return generate(isLast ? last.from : prompt.given());
  }

  document.querySelector(".generate").style.display = info.generates ? "" : "none";
  $("exit").hidden = !info.exits;
  $("generate").addEventListener("click", () => generate());
  $("reroll").addEventListener("click", reroll);
}
