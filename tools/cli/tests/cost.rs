//! Tests that `ferroccl cost` does what its help and its page in the documentation say.

use ccl_harness::command::{examples_of_the_help_work, page_shows_what_it_says, refused, said};

#[test]
fn the_examples_of_the_help_work() {
    examples_of_the_help_work("cost", 5);
    let json = said("cost batch tokens=4M accelerators=4096 --json");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["answer"][0]["value"], 976.5625);
    assert!(refused("cost all_gather ranks=8", 2).contains("needs bytes"));
}

#[test]
fn its_page_shows_what_the_command_prints() {
    page_shows_what_it_says(include_str!("../../../docs/cost.md"), 6);
}
