//! Tests that `ferroccl plan` does what its help and its page in the documentation say.

use ccl_harness::command::{examples_of_the_help_work, page_shows_what_it_says, refused, said};

#[test]
fn the_examples_of_the_help_work() {
    examples_of_the_help_work("plan", 5);
}

#[test]
fn its_page_shows_what_the_command_prints() {
    page_shows_what_it_says(include_str!("../../../docs/plan.md"), 3);
}

#[test]
fn json_has_the_times_and_impossible_plans_are_refused() {
    let json = said("plan all_reduce --bytes 64M --on h100 --json");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let ways = json["ways"].as_array().unwrap();
    let times: Vec<f64> = ways.iter().map(|way| way["time_s"].as_f64().unwrap()).collect();
    assert!(times.is_sorted() && times.len() >= 5, "{times:?}");
    assert!(refused("plan all_reduce --on h1000", 2).contains("there is no file h1000"));
    assert!(refused("plan barrier --on h100", 2).contains("plan another"));
    assert!(refused("plan all_reduce --on p5 --hosts 17", 2).contains("p5 has 16 hosts, not 17"));
}
