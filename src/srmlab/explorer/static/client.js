// Questions to the server. A newer question of the same kind cancels the older one that is still under way.

export class Client {
  constructor() {
    this.running = new Map();
    this.mark = null; // of the model on the page; once it is known, no other model answers
  }

  cancel(kind) {
    this.running.get(kind)?.abort();
  }

  async ask(kind, path, body, method = body === undefined ? "GET" : "POST") {
    this.cancel(kind);
    const controller = new AbortController();
    this.running.set(kind, controller);
    const isOurs = this.mark && !path.startsWith("../"); // and not of a run beside it
    try {
      // relative to the page: a run among several has an address of its own
      const response = await fetch(path.replace(/^\//, ""), {
        method,
        signal: controller.signal,
        headers: {
          ...(body === undefined ? {} : { "content-type": "application/json" }),
          ...(isOurs ? { mark: this.mark } : {}),
        },
        body: body === undefined ? undefined : JSON.stringify(body),
      });
      if (!response.ok) {
        const limit = response.headers.get("token-limit"); // of a prompt that is too long
        throw Object.assign(new Error((await response.json()).error), { limit });
      }
      return response.headers.get("content-type").startsWith("application/json")
        ? await response.json()
        : await response.arrayBuffer();
    } catch (error) {
      // what fetch throws when nobody answers
      if (error instanceof TypeError)
        throw Object.assign(new Error("the server has stopped: run srmlab explore again"), { isGone: true });
      throw error;
    } finally {
      if (this.running.get(kind) === controller) this.running.delete(kind);
    }
  }
}

// True for the error of a question that was cancelled.
export function cancelled(error) {
  return error.name === "AbortError";
}
