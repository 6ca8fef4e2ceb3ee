// What a view asks of the model itself, in the version of the prompt that the page shows. It is asked for when the
// view is drawn; until it is there, and when no answer comes, the view says so instead of showing another one.

export class Asked {
  // name: of the question, /api/NAME. question(): its body. read(answer): optional. minus(after, before): for the
  // difference. ready(): an answer is there, or is known not to come.
  constructor(ctx, name, { question, read = (answer) => answer, minus, ready }) {
    Object.assign(this, { ctx, name, question, read, minus, ready, found: null });
  }

  key() {
    const version = this.ctx.version();
    return JSON.stringify([
      this.question(),
      version,
      version === "baseline" ? null : this.ctx.intervention(),
    ]);
  }

  // The answer for what the page shows now; undefined until it is there, null if there is none.
  get now() {
    return this.found?.key === this.key() ? this.found.answer : undefined;
  }

  async load() {
    const key = this.key();
    const { base } = this.ctx;
    const isLost = this.found?.answer === null && this.found.base !== base; // and may be there by now
    if (this.found?.key === key && !isLost) return;
    const found = (this.found = { key, base, answer: undefined });
    const version = this.ctx.version();
    const ask = async (kind, more) => {
      const answer = await this.ctx.ask(kind, `/api/${this.name}`, { ...this.question(), ...more });
      return answer && this.read(answer);
    };
    const [before, after] = await Promise.all([
      version === "intervened" ? null : ask(this.name),
      version === "baseline"
        ? null
        : ask(`${this.name} intervened`, { intervention: this.ctx.intervention() }),
    ]);
    if (this.found !== found || before === undefined || after === undefined) return;
    if (version === "difference") found.answer = before && after && this.minus(after, before);
    else found.answer = before ?? after;
    this.ready();
  }

  // Asks if need be; true if there is nothing to draw yet, and what stands there instead.
  isMissing(pen, theme) {
    this.load();
    if (this.now) return false;
    const why = this.now === null ? "The model did not answer." : "asking the model …";
    pen.text(why, 8, 24, { color: theme.dim, size: 11 });
    return true;
  }
}
