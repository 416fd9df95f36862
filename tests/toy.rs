//! All collectives over a transport that the library does not know. Adding such a transport takes a
//! crate and one line.

use ccl_harness::{config_with, ranks_with};
use ferroccl::transports;

use crate::collectives::sweep;

#[test]
fn all_collectives_run_over_the_toy_transport() {
    assert!(transports::add(&ccl_toy_transport::KIND));
    for ranks in [2, 3, 5] {
        let config = config_with(|config| config.transport = "toy".to_owned());
        ranks_with(ranks, config, |communicator| {
            assert_eq!(communicator.transport(), "toy");
            sweep(communicator, &[0, 1, 1009]);
        });
    }
}
