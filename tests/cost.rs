//! `ferroccl cost`, as its help and its page in the documentation say.

use std::process::{Command, Output};

fn ferroccl(arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroccl"));
    command.args(arguments.split_whitespace()).output().unwrap()
}

fn said(arguments: &str) -> String {
    let Output { status, stdout, stderr } = ferroccl(arguments);
    assert!(status.success(), "{arguments}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

#[test]
fn the_examples_of_its_help_work() {
    let help = said("cost --help");
    let examples: Vec<_> =
        help.lines().filter_map(|line| line.strip_prefix("  ferroccl ")).collect();
    assert_eq!(examples.len(), 5, "{help}");
    for example in examples {
        assert!(!said(example).is_empty(), "{example}");
    }
    let json = said("cost batch tokens=4M accelerators=4096 --json");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["answer"][0]["value"], 976.5625);
    let Output { status, stderr, .. } = ferroccl("cost all_gather ranks=8");
    assert_eq!(status.code(), Some(2));
    assert!(String::from_utf8_lossy(&stderr).contains("needs bytes"));
}

/// What follows a command on the page is what it says.
#[test]
fn its_page_shows_what_it_says() {
    let page = include_str!("../docs/cost.md");
    let mut examples = 0;
    for part in page.split("```sh\nferroccl ").skip(1) {
        let (command, rest) = part.split_once("\n```\n\n```text\n").unwrap();
        let (shown, _) = rest.split_once("```").unwrap();
        assert_eq!(said(command), shown, "{command}");
        examples += 1;
    }
    assert!(examples >= 6, "{examples} examples");
}
