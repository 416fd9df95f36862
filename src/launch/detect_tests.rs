use super::*;

fn launch(pairs: &[(&str, &str)]) -> Launch {
    detect(&Variables::of(pairs)).unwrap().unwrap()
}

fn error(pairs: &[(&str, &str)]) -> String {
    detect(&Variables::of(pairs)).unwrap_err().to_string()
}

const OWN: [(&str, &str); 3] =
    [("FERROCCL_RANK", "1"), ("FERROCCL_RANKS", "4"), ("FERROCCL_COMM_ID", "n1:29400")];
const TORCH: [(&str, &str); 6] = [
    ("RANK", "3"),
    ("WORLD_SIZE", "4"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "2"),
    ("MASTER_ADDR", "n1"),
    ("MASTER_PORT", "29500"),
];
const OMPI: [(&str, &str); 5] = [
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("PMIX_NAMESPACE", "177130"),
];
const PMI: [(&str, &str); 3] = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("PMI_FD", "6")];
const SLURM: [(&str, &str); 3] =
    [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_STEP_ID", "0")];

fn with<'a>(base: &[(&'a str, &'a str)], more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let kept = base.iter().filter(|(name, _)| more.iter().all(|(other, _)| name != other));
    kept.chain(more).copied().collect()
}

#[test]
fn no_launcher_is_detected_in_an_environment_without_one() {
    assert!(detect(&Variables::of(&[("SHELL", "/bin/sh")])).unwrap().is_none());
    // A batch script under Slurm is one process.
    assert!(detect(&Variables::of(&SLURM[..2])).unwrap().is_none());
    // RANK is a common name: without WORLD_SIZE it names no launcher.
    assert!(detect(&Variables::of(&[("RANK", "x")])).unwrap().is_none());
}

#[test]
fn each_launcher_is_known_by_its_variables() {
    let own = launch(&OWN);
    assert_eq!((own.rank, own.ranks, own.launcher), (1, 4, Launcher::Variables));
    assert!(matches!(own.rendezvous, Rendezvous::Known(at) if at == [Endpoint::new("n1", 29400)]));

    let torch = launch(&TORCH);
    assert_eq!((torch.rank, torch.ranks, torch.launcher), (3, 4, Launcher::Torchrun));
    assert_eq!((torch.local_rank, torch.local_ranks), (Some(1), Some(2)));
    assert!(matches!(torch.rendezvous, Rendezvous::Known(at) if at[0].port == 29500));

    let agent = with(
        &TORCH,
        &[
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("TORCHELASTIC_RUN_ID", "job"),
            ("TORCHELASTIC_RESTART_COUNT", "2"),
        ],
    );
    match launch(&agent).rendezvous {
        Rendezvous::Store(store) => {
            assert_eq!((store.key.as_str(), store.is_recent), ("ferroccl/job/2", false));
        }
        other => panic!("{other:?}"),
    }

    let ompi = launch(&OMPI);
    assert_eq!((ompi.rank, ompi.ranks, ompi.launcher), (1, 2, Launcher::OpenMpi));
    assert!(matches!(ompi.rendezvous, Rendezvous::SameHost(_)));

    let pmi = launch(&with(&PMI, &[("MPI_LOCALNRANKS", "2"), ("MPI_LOCALRANKID", "0")]));
    assert_eq!((pmi.launcher, pmi.local_rank), (Launcher::Pmi, Some(0)));
    let here = PmiAddress::Inherited { fd: 6, is_local: true };
    assert!(matches!(pmi.rendezvous, Rendezvous::Pmi(at) if at == here));
    let port = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("PMI_PORT", "n1:7000"), ("PMI_ID", "5")];
    assert!(matches!(
        launch(&port).rendezvous,
        Rendezvous::Pmi(PmiAddress::Port { id: 5, is_local: false, .. })
    ));
}

#[test]
fn our_own_variables_come_first_and_comm_id_overrides_the_rendezvous_of_every_launcher() {
    let both = [&OWN[..], &TORCH[..], &OMPI[..]].concat();
    assert_eq!(launch(&both).launcher, Launcher::Variables);
    for base in [&TORCH[..], &OMPI[..], &PMI[..], &SLURM[..]] {
        let launch = launch(&with(base, &[("FERROCCL_COMM_ID", "[::1]:7")]));
        assert!(matches!(launch.rendezvous, Rendezvous::Known(at) if at[0].host == "::1"));
    }
    let id = format!("ferroccl1:n1:7:{}", "ab".repeat(32));
    let launch = launch(&with(&SLURM, &[("FERROCCL_COMM_ID", &id)]));
    assert!(matches!(launch.rendezvous, Rendezvous::Id(_)));
}

#[test]
fn one_rank_needs_no_rendezvous() {
    for (base, size) in [(&SLURM[..], "SLURM_NTASKS"), (&PMI[..], "PMI_SIZE")] {
        assert!(matches!(launch(&with(base, &[(size, "1")])).rendezvous, Rendezvous::Alone));
    }
}

#[test]
fn a_malformed_value_is_named_with_its_variable() {
    let cases = [
        (&OWN[..], "FERROCCL_RANK", "x"),
        (&OWN, "FERROCCL_RANKS", ""),
        (&OWN, "FERROCCL_COMM_ID", "n1"),
        (&TORCH, "RANK", "-1"),
        (&TORCH, "WORLD_SIZE", "+4"),
        (&TORCH, "LOCAL_RANK", "1 "),
        (&TORCH, "MASTER_PORT", "70000"),
        (&OWN, "FERROCCL_INSECURE_JOIN", "maybe"),
    ];
    for (base, name, value) in cases {
        let text = error(&with(base, &[(name, value)]));
        assert!(text.starts_with(&format!("{name}={value:?} is not ")), "{text}");
    }
}

#[test]
fn a_missing_or_contradictory_variable_is_named() {
    assert!(error(&OWN[..1]).contains("FERROCCL_RANKS is not set"));
    assert!(error(&OWN[1..]).contains("FERROCCL_RANK is not set"));
    assert!(error(&OWN[..2]).contains("FERROCCL_COMM_ID is not set"));
    assert!(error(&TORCH[..4]).contains("MASTER_ADDR is not set"));
    let text = error(&with(&TORCH, &[("RANK", "4")]));
    assert!(text.contains("RANK=4, but WORLD_SIZE=4"), "{text}");
    let text = error(&with(&TORCH, &[("WORLD_SIZE", "0")]));
    assert!(text.contains("WORLD_SIZE=0"), "{text}");
}

#[test]
fn an_error_for_a_launcher_without_rendezvous_has_an_example() {
    let apart = with(&OMPI, &[("OMPI_COMM_WORLD_LOCAL_SIZE", "1")]);
    for pairs in [&apart[..], &SLURM[..], &PMI[..2]] {
        let text = error(pairs);
        assert!(text.contains("export FERROCCL_COMM_ID=node1.example.org:29400"), "{text}");
    }
}

#[test]
fn the_error_for_a_malformed_unique_id_does_not_show_the_id() {
    let id = format!("ferroccl1:n1:7:{}", "ab".repeat(31));
    assert!(!error(&with(&OWN, &[("FERROCCL_COMM_ID", &id)])).contains("abab"));
}
