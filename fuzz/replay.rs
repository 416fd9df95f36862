//! Runs fuzz targets without a fuzzer, on the kept corpus and on seeded mutations of it. The tests
//! of each crate that has fuzz targets include this file.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

/// Runs a target on its corpus, on its kept crashes, and on mutations of both. The mutations are
/// the same each time; with `FERROCCL_TEST_FULL` there are more of them. Prints a failing input,
/// and then resumes the panic.
pub(crate) fn replay(target: &str, run: fn(&[u8])) {
    let corpus = corpus(target);
    assert!(!corpus.is_empty(), "fuzz/corpus/{target} is empty or gone");
    for input in &corpus {
        check(target, run, input);
    }
    let mutants = if std::env::var_os("FERROCCL_TEST_FULL").is_some() { 500_000 } else { 20_000 };
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..mutants {
        let mut input = corpus[random.below(corpus.len())].clone();
        for _ in 0..=random.below(4) {
            mutate(&mut input, &corpus, &mut random);
        }
        check(target, run, &input);
    }
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    while !root.join("fuzz/corpus").is_dir() {
        assert!(root.pop(), "neither the crate's directory nor one above it has fuzz/corpus");
    }
    let files = |dir: &Path| {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let mut paths = files(&root.join("fuzz/corpus").join(target));
    paths.extend(files(&root.join("fuzz/crashes").join(target)));
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn check(target: &str, run: fn(&[u8]), input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(input))) {
        eprintln!("{target} fails on the bytes {input:02x?}. After the fix, keep these bytes in");
        eprintln!("fuzz/crashes/{target}/NAME");
        resume_unwind(panic);
    }
}

struct Random(u64);

impl Random {
    /// Returns a number below `bound`, which must not be 0.
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }
}

/// Byte values at the limits of integers.
const EDGES: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];

fn mutate(input: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    let at = random.below(input.len() + 1);
    let run = 1 + random.below(8);
    match random.below(7) {
        0 => input.insert(at, random.below(256) as u8),
        1 => input.truncate(at),
        2 => {
            let end = (at + run).min(input.len());
            input.drain(at..end);
        }
        3 => {
            let end = (at + run).min(input.len());
            input.extend_from_within(at..end);
        }
        4 => {
            let other = &corpus[random.below(corpus.len())];
            input.truncate(at);
            input.extend(&other[random.below(other.len() + 1)..]);
        }
        5 => {
            let edge = EDGES[random.below(EDGES.len())];
            input.iter_mut().skip(at).take(run).for_each(|byte| *byte = edge);
        }
        _ => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
    }
}
