//! The command `ferroccl`, and what its help and its pages say of it.

use std::path::PathBuf;
use std::process::{Command, Output};

/// Returns the path of the program, which a build of the workspace's tests leaves beside theirs.
pub fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().and_then(|deps| deps.parent()).unwrap().join("ferroccl");
    assert!(program.exists(), "`cargo build -p ferroccl-cli` makes {}", program.display());
    program
}

/// What it does with these arguments.
pub fn ferroccl(arguments: &str) -> Output {
    let mut command = Command::new(program());
    command.args(arguments.split_whitespace()).output().unwrap()
}

/// What it prints; it must succeed.
pub fn said(arguments: &str) -> String {
    let Output { status, stdout, stderr } = ferroccl(arguments);
    assert!(status.success(), "{arguments}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// What it says when it fails; it must, with this status.
pub fn refused(arguments: &str, code: i32) -> String {
    let Output { status, stderr, .. } = ferroccl(arguments);
    assert_eq!(status.code(), Some(code), "{arguments}");
    String::from_utf8(stderr).unwrap()
}

/// The examples of a command's help are so many, and each prints something.
pub fn examples_of_its_help_work(command: &str, count: usize) {
    let help = said(&format!("{command} --help"));
    let examples: Vec<_> =
        help.lines().filter_map(|line| line.strip_prefix("  ferroccl ")).collect();
    assert_eq!(examples.len(), count, "{help}");
    for example in examples {
        assert!(!said(example).is_empty(), "{example}");
    }
}

/// The commands of this program that a page shows, without its name and what is said of them.
pub fn commands_of(page: &str) -> Vec<&str> {
    let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let parts = blocks.flat_map(|block| block.lines().flat_map(|line| line.split("&&")));
    let bare = parts.filter_map(|part| part.split('#').next());
    bare.filter_map(|part| part.trim().strip_prefix("ferroccl ")).map(str::trim).collect()
}

/// What follows a command on a page is what it prints, at least so often.
pub fn page_shows_what_it_says(page: &str, least: usize) {
    let mut examples = 0;
    for part in page.split("```sh\nferroccl ").skip(1) {
        let (command, rest) = part.split_once("\n```\n\n```text\n").unwrap();
        let (shown, _) = rest.split_once("```").unwrap();
        assert_eq!(said(command), shown, "{command}");
        examples += 1;
    }
    assert!(examples >= least, "{examples} examples");
}
