// Addresses inside the page: `#/`, `#/s/SESSION/VIEW?…`, `#/swarms`, `#/swarms/SWARM`, `#/overview`. Every view has one, so that it
// can be linked to.

const encode = encodeURIComponent;

/** Link to a view of a session; `params` are pairs of names and values. */
export const linkToSession = (id, view = "talk", params = []) =>
  `#/s/${encode(id)}/${view}${params.length ? `?${new URLSearchParams(params)}` : ""}`;
export const linkToBranch = (id, branch) => linkToSession(id, "talk", [["branch", branch]]);
export const linkToEntry = (id, entry, query) => linkToSession(id, "talk", [["entry", entry], ...(query ? [["q", query]] : [])]);
export const linkToComparison = (id, branches) => linkToSession(id, "compare", branches.map((branch) => ["branch", branch]));
export const linkToExperiment = (id, experiment) => linkToSession(id, "ab", [["experiment", experiment]]);
export const SESSIONS = "#/";
export const SWARMS = "#/swarms";
export const OVERVIEW = "#/overview";
export const linkToSwarm = (id) => `#/swarms/${encode(id)}`;

/** Return what an address shows: `{view, id?, tab?, place?}`. */
export function parseAddress(hash) {
  const [path, params] = hash.replace(/^#/, "").split("?");
  const [kind, id, tab = "talk"] = path.split("/").filter(Boolean).map(decode);
  const values = new URLSearchParams(params);
  if (kind === "s" && id) {
    const place = {
      branch: values.get("branch"),
      branches: values.getAll("branch"),
      entry: values.get("entry"),
      query: values.get("q"),
      experiment: values.get("experiment"),
    };
    return { view: "session", id, tab, place };
  }
  if (kind === "swarms") return id ? { view: "swarm", id } : { view: "swarms" };
  if (kind === "overview") return { view: "overview" };
  return { view: "sessions" };
}

export const go = (address) => {
  location.hash = address;
};

const decode = (part) => {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
};
