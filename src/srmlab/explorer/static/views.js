// The built-in views, in the order in which they stand on the page. A view is one file that declares itself (a
// registered one exports the object as `view`):
//
//   name            unique; the panel's id, and what `views` and the address call it
//   title           the panel's heading
//   place           "wide", or its column: "upper left", "upper right", "lower left", "lower right"
//   needs           arrays of the trace without which the view is not shown
//   shows, reading  two sentences behind the panel's "i": what it shows, and how to read it
//   asking          optional: a third sentence, where there is a model to ask: what can be done with it
//   terms           optional: words of the glossary (glossary.js) that are explained below them
//   versions        optional: false if it does not follow the bar's switch between baseline, intervened and
//                   difference (see docs/extending.md)
//   statistic(trace, state) optional: one number with its name, shown beside an untrained twin's
//   caption(trace, other)   optional: one sentence about this trace, computed from it, for the report
//   available(app)  optional: false where it cannot be shown at all, such as without a model to ask
//   uses            parts of the state that the picture depends on
//   stretches       optional: takes the room left in its column
//   eager           optional: drawn even when out of sight, since only then its height is known
//   mount(panel, app)       puts up the controls, and returns
//     render(pen, width, height, theme)   draws the picture, on the screen and for PNG and SVG
//     height(width)                       optional: its natural height
//     update(keys)                        optional: parts of the state have changed
//     table(), python()                   optional: { columns, rows } for CSV; the code behind the numbers
//     tip(hit), hover(hit), click(hit, event)   optional; a hit is a region of the pen with row and column

import { align } from "./views/align.js";
import { attention } from "./views/attention.js";
import { board } from "./views/board.js";
import { card } from "./views/card.js";
import { compare } from "./views/compare.js";
import { drift } from "./views/drift.js";
import { features } from "./views/features.js";
import { flow } from "./views/flow.js";
import { lens } from "./views/lens.js";
import { paths } from "./views/paths.js";
import { puzzle } from "./views/puzzle.js";
import { ranked } from "./views/ranked.js";
import { routing } from "./views/routing.js";
import { stepper } from "./views/stepper.js";
import { tokens } from "./views/tokens.js";
import { training } from "./views/training.js";
import { wall } from "./views/wall.js";

export const REQUIRED = ["name", "title", "place", "needs", "shows", "reading", "uses", "mount"];

// From the prompt to the prediction and who made it: what the model says and what it says without a stream, who
// reads whom, which edges led there; then the details.
export const VIEWS = [
  puzzle,
  tokens,
  lens,
  board,
  wall,
  routing,
  flow,
  ranked,
  paths,
  stepper,
  attention,
  features,
  compare,
  align,
  card,
  drift,
  training,
];
