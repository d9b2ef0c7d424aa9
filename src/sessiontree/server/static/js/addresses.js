// Addresses inside the page: `#/`, `#/s/SESSION/VIEW?…`, `#/swarms`, `#/swarms/SWARM`. Every view has one, so that it
// can be linked to.

const name = encodeURIComponent;

/** A view of a session; `words` are pairs of names and values. */
export const ofSession = (id, view = "talk", words = []) =>
  `#/s/${name(id)}/${view}${words.length ? `?${new URLSearchParams(words)}` : ""}`;
export const ofBranch = (id, branch) => ofSession(id, "talk", [["branch", branch]]);
export const ofComparison = (id, branches) => ofSession(id, "compare", branches.map((branch) => ["branch", branch]));
export const ofExperiment = (id, experiment) => ofSession(id, "ab", [["experiment", experiment]]);
export const SESSIONS = "#/";
export const SWARMS = "#/swarms";
export const ofSwarm = (id) => `#/swarms/${name(id)}`;

/** What an address shows: `{view, id?, tab?, place?}`. */
export function read(hash) {
  const [path, words] = hash.replace(/^#/, "").split("?");
  const [kind, id, tab = "talk"] = path.split("/").filter(Boolean).map(decoded);
  const values = new URLSearchParams(words);
  if (kind === "s" && id) {
    const place = {
      branch: values.get("branch"),
      branches: values.getAll("branch"),
      entry: values.get("entry"),
      experiment: values.get("experiment"),
    };
    return { view: "session", id, tab, place };
  }
  if (kind === "swarms") return id ? { view: "swarm", id } : { view: "swarms" };
  return { view: "sessions" };
}

export const go = (address) => {
  location.hash = address;
};

const decoded = (part) => {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
};
