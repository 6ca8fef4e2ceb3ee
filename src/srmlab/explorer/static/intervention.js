// The intervention as the board sets it up: modes of ablation, switching one, and the whole in words.

export const MODES = ["mean", "zero", "resample"];

// Switch one stream's ablation; a stream has one mode at a time.
export function toggleAblation(store, stream, mode = 0) {
  const code = stream * 3 + mode;
  const rest = store.get("ablated").filter((other) => Math.floor(other / 3) !== stream);
  store.set({
    ablated: store.get("ablated").includes(code) ? rest : [...rest, code].sort((a, b) => a - b),
    stream,
  });
}

// An intervention in words: "ablate S0 mean, S2 zero after L1–L3; cut L0 H1 S2←S3 at 4; clamp S1 feature 17 at
// 0".
export function describe({ ablations, cuts, holds = [] }) {
  const streams = ablations.map(({ stream, mode }) => `S${stream} ${mode}`).join(", ");
  const edges = cuts
    .map(
      ({ layer, head, target, source, token }) =>
        `L${layer} H${head} S${target}←S${source}${token === null ? "" : ` at ${token}`}`,
    )
    .join(", ");
  const layers = ablations.length
    ? [...new Set([ablations[0].first, ablations[0].last])].map((layer) => `L${layer}`).join("–")
    : "";
  const features = holds
    .map(({ stream, feature, value }) => `S${stream} feature ${feature} at ${value}`)
    .join(", ");
  return [
    streams && `ablate ${streams} after ${layers}`,
    edges && `cut ${edges}`,
    features && `clamp ${features}`,
  ]
    .filter(Boolean)
    .join("; ");
}
