//! Tests that `ferroccl explain` does what its help and its page in the documentation say.

use serde_json::Value;

use ccl_harness::command::{examples_of_the_help_work, page_shows_what_it_says, refused, said};

#[test]
fn the_examples_of_the_help_work() {
    examples_of_the_help_work("explain", 5);
}

#[test]
fn its_page_shows_what_the_command_prints() {
    page_shows_what_it_says(include_str!("../../../docs/explain.md"), 2);
}

#[test]
fn json_has_the_plan_and_the_predicted_times() {
    let json = said("explain all_gather --bytes 256k --ranks 6 --hosts 3 --algo ring/4 --json");
    let plan: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&plan["algorithm"], &plan["slot_fraction"]), (&"ring".into(), &"/4".into()));
    let times = plan["expected"].as_array().unwrap().iter().map(|way| way["time_us"].as_f64());
    let times: Vec<f64> = times.map(Option::unwrap).collect();
    assert!(times.len() >= 5 && times.is_sorted(), "{times:?}");
    // Too many ranks for a prediction: only the plan is shown.
    let json = said("explain all_reduce --ranks 1000 --hosts 125 --json");
    let plan: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&plan["hosts"], plan.get("expected")), (&125.into(), None));
}

#[test]
fn the_rule_that_decides_is_a_line_of_the_table_of_rules() {
    let json = said("explain broadcast --bytes 8 --ranks 5 --hosts 5 --json");
    let plan: Value = serde_json::from_str(&json).unwrap();
    let line = format!("rule {}", plan["rule"].as_str().unwrap());
    assert!(said("explain --rules").lines().any(|rule| rule == line), "{line}");
    let asked = said("explain broadcast --ranks 5 --algo ring --json");
    assert_eq!(serde_json::from_str::<Value>(&asked).unwrap().get("rule"), None);
}

#[test]
fn requests_that_cannot_be_planned_are_refused_with_the_reason() {
    for (line, words) in [
        ("explain all_reduce --ranks 4 --rank 4", "rank 4 is not among the 4 ranks"),
        ("explain", "required arguments"),
        ("explain --rules --ranks 5", "cannot be used with"),
        ("explain all_reduce --ranks 5 --hosts 2", "cannot be spread evenly"),
        ("explain all_reduce --ranks 0", "0 is not in 1..=65536"),
        ("explain all_gather_v", "supports only collectives with equal counts"),
        ("explain all_reduce --algo rign", "no algorithm \"rign\""),
        ("explain broadcast --ranks 2 --root 2", "root"),
    ] {
        let error = refused(line, 2);
        assert!(error.contains(words), "{line}: {error}");
    }
}
