// A view: the surprisal of the selected token, large.
export const view = {
  name: "surprisal-large",
  title: "Surprisal, large",
  place: "wide",
  needs: ["surprisal"],
  shows: "The surprisal of the selected token.",
  reading: "In bits: 1 bit less means twice as likely.",
  uses: ["token"],
  mount: (panel, app) => ({
    render(pen, width, height, theme) {
      const bits = app.trace.data("surprisal")[app.store.get("token")];
      pen.text(`${bits.toFixed(3)} bits`, 10, 60, { color: theme.ink, size: 40 });
    },
  }),
};
