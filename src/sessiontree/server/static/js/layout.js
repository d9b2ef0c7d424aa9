// Positions of the entries of a tree: a row for each depth, a lane for each chain. Pure functions.
//
// The first child of an entry stays in its lane; on the path to the leaf, that is the child on the path, so the active
// path is a straight line. Every other child starts a chain in a lane further right. Chains are placed from the bottom
// of their parent chain upwards, each in the nearest lane where its subtree fits. So no two lines cross, and a tree of
// many short branches stays narrow.

/** Lay out rows `{id, parent}`, parents first. Returns `{nodes, roots, chains, index, lanes, depth}`. */
export function layOut(rows, leaf = null) {
  const index = new Map();
  const nodes = rows.map((row, number) => {
    index.set(row.id, number);
    return { row, number, parent: index.get(row.parent) ?? -1, children: [], chain: null, depth: 0 };
  });
  const roots = [];
  for (const node of nodes) {
    if (node.parent === node.number) node.parent = -1;
    if (node.parent < 0) {
      roots.push(node.number);
      continue;
    }
    node.depth = nodes[node.parent].depth + 1;
    nodes[node.parent].children.push(node.number);
  }
  for (let at = index.get(leaf) ?? -1; at >= 0; at = nodes[at].parent) {
    const siblings = nodes[at].parent < 0 ? roots : nodes[nodes[at].parent].children;
    if (siblings[0] !== at) siblings.unshift(...siblings.splice(siblings.indexOf(at), 1));
  }
  const chains = [];
  const startChain = (number) => {
    const chain = { first: number, lane: 0, top: nodes[number].depth, members: [], below: nodes[number].depth };
    for (let at = number; at !== undefined; at = nodes[at].children[0]) {
      chain.members.push(at);
      nodes[at].chain = chain;
    }
    chains.push(chain);
    return chain;
  };
  roots.forEach(startChain);
  for (let at = 0; at < chains.length; at++) {
    for (const member of chains[at].members) nodes[member].children.slice(1).forEach(startChain);
  }
  // A chain comes after its parent chain. Going backwards, all children of a chain come before it.
  for (let at = chains.length - 1; at >= 0; at--) {
    const chain = chains[at];
    chain.below = Math.max(chain.below, chain.top + chain.members.length - 1);
    const parent = nodes[chain.first].parent;
    if (parent >= 0) nodes[parent].chain.below = Math.max(nodes[parent].chain.below, chain.below);
  }
  const tops = []; // the highest occupied row of each lane
  const placeChain = (chain, from) => {
    let lane = tops.length;
    while (lane > from && tops[lane - 1] > chain.below) lane--;
    chain.lane = lane;
    tops[lane] = Math.min(tops[lane] ?? Infinity, chain.top);
  };
  const listSideChains = (chain) => {
    const found = [];
    for (let at = chain.members.length - 1; at >= 0; at--) {
      for (const child of nodes[chain.members[at]].children.slice(1)) found.push(nodes[child].chain);
    }
    return found.reverse();
  };
  const waiting = roots.map((number) => [nodes[number].chain, 0]).reverse();
  while (waiting.length) {
    const [chain, from] = waiting.pop();
    placeChain(chain, from);
    for (const aside of listSideChains(chain)) waiting.push([aside, chain.lane + 1]);
  }
  const depth = nodes.reduce((most, node) => Math.max(most, node.depth + 1), 0);
  return { nodes, roots, chains, index, lanes: tops.length, depth };
}

/** Return the numbers of the entries from the root to an entry. */
export function findPath(layout, id) {
  const found = [];
  for (let at = layout.index.get(id) ?? -1; at >= 0; at = layout.nodes[at].parent) found.push(at);
  return found.reverse();
}

/** Return the members of a chain between two rows. */
export function findMembers(chain, from, to) {
  const first = Math.max(0, Math.ceil(from) - chain.top);
  return chain.members.slice(first, Math.max(first, Math.floor(to) - chain.top + 1));
}
