// The registered views. Where there are some, the server and the bundle put a list of them in this file's place.

export const OWN = [];
