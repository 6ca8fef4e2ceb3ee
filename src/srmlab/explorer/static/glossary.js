// The words of the page, each in a sentence.

export const TERMS = {
  stream:
    "One of the parallel states of a token. Each has weights of its own and runs through all " +
    "of the depth; the streams of a token read one another only in the connection.",
  layer:
    "One round of the recursion: the connection, then the steps. The weights are the same in " +
    "every layer.",
  step:
    "One call of a step function (A, B, C …): for every stream its own attention over earlier " +
    "tokens and its own MLP.",
  connection:
    "Where the streams of one token meet: each (the target) reads all (the sources) by " +
    "attention between streams. No token sees another here.",
  routing:
    "The connection's attention pattern: how much each target reads of each source. A row adds up to 1.",
  switch:
    "An edge of the routing that opens and closes with the token: strong on average, and its weight differs " +
    "between tokens more than any edge's of an untrained model does.",
  attention:
    "How a token reads earlier ones: weights that add up to 1. In SRM every stream does so on its own, in " +
    "every step.",
  induction:
    "Looking for what came after the same token before. The score is a head's mean weight on it in random " +
    "tokens read twice.",
  head: "One of several attention patterns side by side in the same layer.",
  state: "What a stream holds at a token: a vector, changed by every step.",
  update:
    "What a step is given besides the state: the connection's message and the token's input, normalised.",
  "hub and sink":
    "A hub is read by many other streams, a sink reads many: shares of edges above the threshold. Streams of an " +
    "untrained model differ in this too, so look at the untrained twin before calling one a hub.",
  threshold: "The weight from which an edge counts. An even share is 1 / number of streams.",
  surprisal: "−log₂ of the probability that the model gave the token. 1 bit more is half as likely.",
  KL:
    "How far one prediction is from another, in bits: 0 is the same; it grows with every " +
    "probability that moves.",
  ablation:
    "Putting something else in the place of a stream: its mean over text, zero, or its state " +
    "at another token. What the prediction loses is what the stream was needed for.",
  logit:
    "The number behind a probability before they are made to add up to 1. One more logit is " +
    "about 2.7 times the odds.",
  cut: "One weight of the routing set to 0, at one token or at all. The other weights stay as they are.",
  "logit lens": "What the model would predict if a state inside it were decoded as if it were the last.",
  "log-probability": "The natural logarithm of a probability, in nats: 0 is certain, −0.69 is one half.",
  drift: "How much a step function's contribution changes from one layer to the next.",
  feature:
    "A direction in a stream's state, learned by a sparse dictionary: few are active at a " +
    "time, and each tends to stand for something.",
  clamp: "A feature kept at one value, whatever the text. At 0 it is ablated.",
  target: "The token that comes next: the prompt's own; after the last one, the model's first choice.",
  token: "A piece of text, the unit the model reads: a word, a part of one, or a byte.",
};

// A list of terms for a dialog; all by default.
export function definitions(h, names = Object.keys(TERMS)) {
  return h(
    "dl",
    { class: "terms" },
    names.filter((name) => name in TERMS).flatMap((name) => [h("dt", {}, name), h("dd", {}, TERMS[name])]),
  );
}
