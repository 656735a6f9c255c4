// The root is said, so that no lock file further up is taken for that of a workspace.
export default { turbopack: { root: import.meta.dirname } }
