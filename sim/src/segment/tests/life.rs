//! Creation, reuse, replacement and forks of segments.

use super::*;

#[test]
fn a_segment_of_another_kind_is_left_alone() {
    let setup = Setup::new();
    std::fs::write(&setup.settings.state, b"my diary").unwrap();
    let error = Segment::open(&setup.settings).unwrap_err();
    assert!(error.to_string().contains("no segment"), "{error}");
    assert_eq!(std::fs::read(&setup.settings.state).unwrap(), b"my diary");
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let mut setup = Setup::new();
    setup.settings.state = PathBuf::from("/nowhere/at/all");
    let error = Segment::open(&setup.settings).unwrap_err().to_string();
    assert!(error.contains("/nowhere/at/all") && error.contains("No such file"), "{error}");
}

#[test]
fn a_segment_in_use_keeps_its_gpus_and_one_out_of_use_is_made_anew() {
    let setup = Setup::new();
    let other =
        Settings { gpus: Some(GpuSpec::parse_list("V100").unwrap()), ..setup.settings.clone() };
    let any = Settings { gpus: None, ..setup.settings.clone() };
    let first = setup.open();
    let refused = Segment::open(&other).unwrap_err().to_string();
    assert!(refused.contains("T4:4096,A10:8192") && refused.contains("V100"), "{refused}");
    assert_eq!(Segment::open(&any).unwrap().gpus().len(), 3);
    let slower = Settings { dilation_milli: 5_000, ..setup.settings.clone() };
    assert_eq!(
        Segment::open(&slower).unwrap().dilation_milli(),
        1_000,
        "whoever came first decides"
    );
    drop(first);
    assert_eq!(Segment::open(&other).unwrap().gpus()[0].model.key, "V100");
}

#[test]
fn a_truncated_or_older_segment_is_replaced_when_nobody_uses_it() {
    let setup = Setup::new();
    drop(setup.open());
    let file = std::fs::OpenOptions::new().write(true).open(&setup.settings.state).unwrap();
    file.set_len(1 << 20).unwrap();
    drop(setup.open());
    let file = std::fs::OpenOptions::new().write(true).open(&setup.settings.state).unwrap();
    // The layout's number.
    file.write_all_at(&[1; 8], 8).unwrap();
    setup.open();
}

#[test]
fn a_forked_child_is_told_so_and_touches_nothing() {
    let setup = Setup::new();
    let segment = setup.open();
    let child = spawn(|| {
        assert!(segment.is_inherited());
        assert_eq!(segment.transact(|_| Ok(())), Err(Error::Forked));
        let own = setup.open();
        assert_ne!(own.process(), segment.process());
    });
    assert_eq!(fate(child), Fate::Finished);
    assert_eq!(segment.transact(|_| Ok(())), Ok(()));
}

#[test]
fn slots_run_out_with_a_sentence_and_come_back() {
    let setup = Setup::new();
    let all: Vec<_> = (0..256).map(|_| setup.open()).collect();
    assert!(matches!(Segment::open(&setup.settings), Err(Error::Full("processes"))));
    assert_eq!(all[17].process(), 17);
    drop(all);
}
