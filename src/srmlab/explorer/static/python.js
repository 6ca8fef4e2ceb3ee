// The Python behind a picture: lines that make the model, the trace and the intervention that it shows.

export class Python {
  constructor(app) {
    this.app = app;
  }

  // What the Python behind every picture begins with; `version` is what `trace` is to be.
  preamble(traced = true, version = this.app.version()) {
    const lines = [
      "import srmlab, torch",
      "from srmlab.explorer import capture",
      "",
      this.app.python || this.app.base.manifest.python,
      ...this.weights(this.app.base.manifest.note?.checkpoint),
      `prompt = ${this.prompt()}`,
    ];
    if (traced && version === "baseline") lines.push(`trace = ${this.capture("model", "prompt")}`);
    if (traced && version === "difference")
      lines.push(
        `without = ${this.capture("model", "prompt")}`,
        "# the picture: what the lines below give for trace, less what they give for without",
      );
    if (traced && version !== "baseline") lines.push(this.intervened("trace"));
    return lines.join("\n");
  }

  // The same, and the lines of one view about `trace`.
  of(...lines) {
    return [this.preamble(), "", ...lines].join("\n");
  }

  // The weights of a checkpoint, or of the untrained twin, and their own mean states.
  weights(name, model = "model", reference = "reference") {
    if (!name) return [];
    if (this.app.isBoard)
      return [
        `subject = session.subject(${pythonString(name)})`,
        `${model}, ${reference} = subject.model, subject.reference`,
      ];
    const made =
      name === "untrained"
        ? "next(srmlab.analysis.null.twins(model, 1))[1].eval()"
        : `srmlab.load(f"{run}/checkpoints/${name}")`;
    const means = `${reference} = srmlab.analysis.state_means(${model}, evaluation_text(run, ${model}))`;
    return [`${model} = ${made}`, ...(this.hasReference() ? [means] : [])];
  }

  // Whether means are taken over evaluation text, rather than over the prompt.
  hasReference(trace = this.app.base) {
    return trace.manifest.reference === "evaluation tokens";
  }

  // A trace of this name with the board's intervention.
  intervened(name) {
    const hooks = `, hooks=intervention.hooks(model, baseline.means${this.dictionary()})`;
    const answer = this.app.base.data("target").at(-1);
    return [
      this.intervention(),
      `${name} = ${this.capture("model", "prompt", { more: `${hooks}, answer=${answer}` })}`,
    ].join("\n");
  }

  // The prompt as text, or as token ids where the text would be read as other tokens.
  prompt(trace = this.app.base) {
    return trace.manifest.exact
      ? pythonString(trace.manifest.prompt)
      : JSON.stringify(Array.from(trace.data("tokens")));
  }

  // A call of capture with the means that the numbers on the screen were made with.
  capture(model, prompt, { trace = this.app.base, reference = "reference", more = "" } = {}) {
    const means = this.hasReference(trace) ? `, reference=${reference}` : "";
    const lexicon = trace.has("features") ? ", lexicon=lexicon" : "";
    return `capture(${model}, tokenizer, ${prompt}${means}${lexicon}${more})`;
  }

  // The prompt as it is: what interventions are set against.
  baseline() {
    const reference = this.hasReference() ? ", reference" : "";
    const reading = this.app.isBoard ? ", reading=tokenizer.reading" : "";
    return [
      "from srmlab.analysis import AblatedStream, CutEdge, HeldFeature, Intervention",
      "from srmlab.explorer.outcomes import Baseline, evaluate",
      "",
      `tokens = torch.tensor(${JSON.stringify(this.app.tokens())})`,
      `baseline = Baseline.of(model, tokens${reference}${reading})`,
    ].join("\n");
  }

  // The board's intervention, and the baseline it is set against.
  intervention() {
    const { ablations, cuts, holds } = this.app.intervention();
    const literal = (value) => (value === null ? "None" : JSON.stringify(value));
    const keywords = (one) => Object.entries(one).map(([name, value]) => `${name}=${literal(value)}`);
    const tuple = (type, list) =>
      list.length ? `(${list.map((one) => `${type}(${keywords(one).join(", ")})`).join(", ")},)` : "()";
    return [
      this.baseline(),
      "intervention = Intervention(",
      `    ablations=${tuple("AblatedStream", ablations)},`,
      `    cuts=${tuple("CutEdge", cuts)},`,
      ...(holds.length ? [`    holds=${tuple("HeldFeature", holds)},`] : []),
      ")",
    ].join("\n");
  }

  // What `evaluate` and `intervention.hooks` ask for beside the intervention.
  dictionary() {
    return this.app.store.get("holds").length ? ", lexicon.dictionary" : "";
  }
}

function pythonString(text) {
  return JSON.stringify(text)
    .replace(/[\u007f-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`)
    .replace(
      /\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}/g,
      (pair) => `\\U${JSON.parse(`"${pair}"`).codePointAt(0).toString(16).padStart(8, "0")}`,
    );
}
