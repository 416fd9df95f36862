//! Circles: modules that use each other, and can only be understood together. The baseline
//! (`xtask/tidy-baseline.toml`) has the number of modules in circles per crate; the number may only
//! fall.
//!
//! Two levels are checked. On the first, each top module of a crate stands for itself and all
//! modules below it. On the second, each file stands for itself, and a module and its descendants
//! may use each other.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::source::Source;

/// Modules, each with the modules that it uses.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Rust paths (such as `crate::b::B`) in the code of each crate's modules.
#[derive(Debug, Default)]
pub(super) struct Uses {
    /// Modules of each crate, keyed by the folder of the crate's source. Each module has the Rust
    /// paths that its code names.
    crates: BTreeMap<String, BTreeMap<String, Vec<String>>>,
}

impl Uses {
    /// Adds the Rust paths that the code of the file `path` names.
    pub(super) fn collect(&mut self, path: &str, source: &Source) {
        let Some((folder, module)) = module_of(path) else { return };
        let named = source.paths.iter().filter(|named| !source.is_test(named.line));
        let named = named.filter_map(|named| absolute(&module, &named.path)).collect();
        self.crates.entry(folder).or_default().insert(module, named);
    }

    /// Returns the modules in circles, keyed by the folder of their crate's source.
    pub(super) fn circles(&self) -> BTreeMap<String, BTreeSet<String>> {
        let found = self.crates.iter().map(|(folder, modules)| {
            let mut all = in_circles(&top(modules));
            all.extend(in_circles(&files(modules)));
            (folder.clone(), all)
        });
        found.filter(|(_, all)| !all.is_empty()).collect()
    }
}

/// Returns the folder of a crate's source and the path of a file's module in the crate; `None` for
/// tests, `main.rs`, and files outside of `src`.
fn module_of(path: &str) -> Option<(String, String)> {
    let (crate_dir, inner) = match path.strip_prefix("src/") {
        Some(inner) => ("", inner),
        None => path.split_once("/src/")?,
    };
    let inner = inner.strip_suffix(".rs")?;
    let parts: Vec<&str> = inner.split('/').collect();
    if parts.iter().any(|part| *part == "tests" || part.ends_with("_tests") || *part == "main") {
        return None;
    }
    let module = match parts.as_slice() {
        ["lib"] => String::new(),
        [above @ .., "mod"] => above.join("::"),
        all => all.join("::"),
    };
    let folder = if crate_dir.is_empty() { "src".to_owned() } else { format!("{crate_dir}/src") };
    Some((folder, module))
}

/// Converts the Rust path `path`, named in `module`, to a path that starts at the crate's root,
/// without `crate::`. Returns `None` if `path` leads above the crate's root, or does not begin with
/// `crate::`, `super::` or `self::`.
fn absolute(module: &str, path: &str) -> Option<String> {
    let mut here: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
    let mut rest = path;
    if let Some(inner) = rest.strip_prefix("crate::") {
        return Some(inner.to_owned());
    }
    if !rest.starts_with("super::") && !rest.starts_with("self::") {
        return None;
    }
    loop {
        if let Some(inner) = rest.strip_prefix("super::") {
            here.pop()?;
            rest = inner;
        } else if let Some(inner) = rest.strip_prefix("self::") {
            rest = inner;
        } else {
            break;
        }
    }
    here.extend(rest.split("::"));
    Some(here.join("::"))
}

/// Returns the graph of the top modules, each with everything below it.
fn top(modules: &BTreeMap<String, Vec<String>>) -> Graph {
    let first = |path: &str| path.split("::").next().unwrap_or_default().to_owned();
    let known: BTreeSet<String> = modules.keys().map(|module| first(module)).collect();
    let mut graph = Graph::new();
    for (module, paths) in modules.iter().filter(|(module, _)| !module.is_empty()) {
        let own = first(module);
        let used = paths.iter().map(|path| first(path));
        let used = used.filter(|used| *used != own && known.contains(used));
        graph.entry(own.clone()).or_default().extend(used);
    }
    graph
}

/// Returns the graph of all files, without the uses between a module and its descendants.
fn files(modules: &BTreeMap<String, Vec<String>>) -> Graph {
    let within = |inner: &str, outer: &str| {
        outer.is_empty() || inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with("::"))
    };
    let mut graph = Graph::new();
    for (module, paths) in modules {
        let used = paths.iter().filter_map(|path| {
            let mut used = path.as_str();
            while !modules.contains_key(used) {
                used = used.rsplit_once("::")?.0;
            }
            Some(used.to_owned())
        });
        let others =
            used.filter(|used| used != module && !within(used, module) && !within(module, used));
        graph.insert(module.clone(), others.collect());
    }
    graph
}

/// Returns the modules that reach themselves.
fn in_circles(graph: &Graph) -> BTreeSet<String> {
    let reaches_itself = |start: &&String| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![start.as_str()]);
        while let Some(module) = left.pop() {
            for used in graph.get(module).into_iter().flatten() {
                if used == *start {
                    return true;
                }
                if seen.insert(used.as_str()) {
                    left.push(used);
                }
            }
        }
        false
    };
    graph.keys().filter(reaches_itself).cloned().collect()
}

/// Compares the circles with the baseline; returns each difference. `at` is the baseline's path.
pub(super) fn compare(
    at: &str,
    circles: &BTreeMap<String, BTreeSet<String>>,
    tolerated: &BTreeMap<String, usize>,
) -> Vec<Finding> {
    let more = circles.iter().filter_map(|(folder, modules)| {
        let known = tolerated.get(folder).copied().unwrap_or(0);
        let names = Vec::from_iter(modules.iter().map(String::as_str)).join(", ");
        let count = modules.len();
        (count > known).then(|| {
            let message = format!(
                "{count} modules use each other in circles, up from {known}: remove a use between \
                 two of {names}"
            );
            Finding::new(folder, 0, message)
        })
    });
    let fewer = tolerated.iter().filter_map(|(folder, known)| {
        let count = circles.get(folder).map_or(0, BTreeSet::len);
        (count < *known).then(|| {
            let message =
                format!("`{folder}` has {count} modules in circles, not {known}: lower its entry");
            Finding::new(at, 0, message)
        })
    });
    more.chain(fewer).collect()
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let mut uses = Uses::default();
        for (path, text) in files {
            uses.collect(path, &source::read(text).unwrap());
        }
        uses.circles().into_values().flatten().collect()
    }

    #[test]
    fn modules_that_use_each_other_are_found() {
        let lib = ("src/lib.rs", "mod a; mod b; pub use a::A;");
        let one_way = [lib, ("src/a.rs", "use crate::b::B;"), ("src/b.rs", "struct B;")];
        assert_eq!(circles(&one_way), [""; 0]);
        let both = [lib, ("src/a.rs", "use crate::b::B;"), ("src/b.rs", "use crate::a::A;")];
        assert_eq!(circles(&both), ["a", "b"]);
        let in_a_test = "#[cfg(test)] mod tests { use crate::a::A; }";
        assert_eq!(
            circles(&[lib, ("src/a.rs", "use crate::b::B;"), ("src/b.rs", in_a_test)]),
            [""; 0]
        );
    }

    #[test]
    fn circles_between_folders_and_between_files_are_found() {
        let found = circles(&[
            ("x/src/a/mod.rs", "mod c;"),
            ("x/src/a/c.rs", "use crate::b::B; use super::Own;"),
            ("x/src/b.rs", "use crate::a::A;"),
        ]);
        assert_eq!(found, ["a", "b"]);
        let found = circles(&[
            ("x/src/a/mod.rs", "mod c; mod d; use c::C;"),
            ("x/src/a/c.rs", "use super::d::D;"),
            ("x/src/a/d.rs", "use super::c::C;"),
        ]);
        assert_eq!(found, ["a::c", "a::d"]);
    }

    #[test]
    fn any_difference_from_the_baseline_is_found() {
        let of = |count: usize| {
            let modules = (0..count).map(|number| number.to_string()).collect();
            BTreeMap::from([("src".to_owned(), modules)])
        };
        let known = BTreeMap::from([("src".to_owned(), 3)]);
        let found = |count| compare("baseline", &of(count), &known).len();
        assert_eq!([2, 3, 4].map(found), [1, 0, 1]);
    }
}
