//! `ferroccl sim`, as its help says. What it shows is tested in its crate, `sim`.

use crate::harness::command::{examples_of_its_help_work, refused, said};

#[test]
fn the_examples_of_its_help_work() {
    examples_of_its_help_work("sim", 8);
}

#[test]
fn what_it_says_is_the_same_from_the_same_seed() {
    let of = |seed: u32| said(&format!("sim --scenario f2 --set trials=5 --seed {seed} --json"));
    assert_eq!(of(3), of(3));
    assert_ne!(of(3), of(4));
    assert!(refused("sim --scenario f99", 2).contains("f99"));
    assert!(refused("sim --scenario f2 --set uplink=3", 2).contains("uplink"));
    assert!(refused("sim --scenario f2 --on p5", 2).contains("its own network"));
    assert!(refused("sim --scenario job --on nowhere.toml", 2).contains("no file nowhere.toml"));
}
