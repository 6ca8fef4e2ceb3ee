// The words of the page, each in a sentence.

const TERMS = {
  stream:
    "One of the parallel states of a token. Each has its own weights and runs through the whole depth; the streams " +
    "of a token read one another only in the connection.",
  layer: "One round of the recursion: the connection, then the steps. Every layer has the same weights.",
  step:
    "One call of a step function (A, B, C …): in every stream, its own attention over earlier tokens and its own " +
    "MLP.",
  connection:
    "Where the streams of one token meet: each (the target) reads all of them (the sources) by attention between " +
    "streams. Tokens do not see one another here.",
  routing:
    "The connection's attention pattern: how much each target reads from each source. Every row sums to 1.",
  switch:
    "An edge of the routing that opens and closes from token to token: strong on average, with a weight that varies " +
    "between tokens more than that of any edge of an untrained model.",
  attention:
    "How a token reads earlier ones: weights that sum to 1. In SRM every stream does this on its own, in every step.",
  induction:
    "Looking for what followed the same token before. The score is a head's mean weight on it in random tokens " +
    "read twice.",
  head: "One of several attention patterns side by side in the same layer.",
  state: "What a stream holds at a token: a vector that every step changes.",
  update:
    "What a step receives besides the state: the connection's message and the token's input, normalised.",
  "hub and sink":
    "A hub is read by many other streams, a sink reads many: both are shares of edges above the threshold. Streams " +
    "of an untrained model differ in this too, so look at the untrained twin before calling one a hub.",
  threshold: "The weight above which an edge counts. An even share is 1 / number of streams.",
  surprisal: "−log₂ of the probability that the model gave the token. One bit more means half as likely.",
  KL: "How far one prediction is from another, in bits: 0 if they are the same, more the more probability moves.",
  ablation:
    "Replacing a stream by something else: its mean over text, zero, or its state at another token. What the " +
    "prediction loses is what the stream was needed for.",
  logit:
    "The score behind a probability, before all scores are made to sum to 1. One more logit multiplies the odds " +
    "by about 2.7.",
  cut: "One routing weight set to 0, at one token or at all of them. The other weights stay as they are.",
  "logit lens":
    "What the model would predict if a state inside it were decoded as if it were the last one.",
  "log-probability": "The natural logarithm of a probability, in nats: 0 is certain, −0.69 is one half.",
  drift: "How much a step function's contribution changes from one layer to the next.",
  feature:
    "A direction in a stream's state, learned by a sparse dictionary: few are active at a time, and each tends to " +
    "stand for something.",
  clamp: "Holding a feature at one value, whatever the text. At 0 it is ablated.",
  target: "The token that comes next in the prompt; after the last one, the model's first choice.",
  token: "A piece of text, the unit the model reads: a word, a part of one, or a byte.",
};

// The terms that say something else where the model fills a board.
const TERMS_OF_BOARDS = {
  logit: "The score behind the probability of a value, before all scores are made to sum to 1.",
  surprisal: "−log₂ of the probability that the model gave the right value. One bit more means half as likely.",
  target: "The right value of a cell.",
  token: "A square of the board: a value that is given, or one to be filled in.",
};

// Words of the page that are others there, the longer ones first.
const WORDS_OF_BOARDS = [
  ["earlier tokens", "the other cells"],
  ["earlier ones", "the others"],
  ["next-token distribution", "likeliest values"],
  ["most likely token", "most likely value"],
  ["top tokens", "top values"],
  ["over text", "over boards"],
  ["the text", "the board"],
  ["prompt", "board"],
  ["Token", "Cell"],
  ["token", "cell"],
];

// A sentence of the page as it is said of a board.
export function ofBoards(sentence) {
  return WORDS_OF_BOARDS.reduce((said, [word, instead]) => said.replaceAll(word, instead), sentence);
}

// A list of terms for a dialog; all by default.
export function definitions(h, isBoard, names = Object.keys(TERMS)) {
  const said = isBoard ? ofBoards : (sentence) => sentence;
  const terms = isBoard ? { ...TERMS, ...TERMS_OF_BOARDS } : TERMS;
  return h(
    "dl",
    { class: "terms" },
    names
      .filter((name) => name in TERMS && !(isBoard && name === "induction"))
      .flatMap((name) => [h("dt", {}, said(name)), h("dd", {}, said(terms[name]))]),
  );
}
