//! Creation, reuse, replacement and forks of segments.

use super::*;

#[test]
fn foreign_file_is_refused_and_unchanged() {
    let setup = Setup::new();
    std::fs::write(&setup.settings.state, b"my diary").unwrap();
    let error = Segment::open(&setup.settings).unwrap_err();
    assert!(error.to_string().contains("not a segment"), "{error}");
    assert_eq!(std::fs::read(&setup.settings.state).unwrap(), b"my diary");
}

#[test]
fn missing_directory_is_named_in_the_error() {
    let mut setup = Setup::new();
    setup.settings.state = PathBuf::from("/nowhere/at/all");
    let error = Segment::open(&setup.settings).unwrap_err().to_string();
    assert!(error.contains("/nowhere/at/all") && error.contains("No such file"), "{error}");
}

#[test]
fn segment_with_other_gpus_is_replaced_only_when_unused() {
    let setup = Setup::new();
    let other =
        Settings { gpus: Some(GpuSpec::parse_list("V100").unwrap()), ..setup.settings.clone() };
    let any = Settings { gpus: None, ..setup.settings.clone() };
    let first = setup.open();
    let refused = Segment::open(&other).unwrap_err().to_string();
    assert!(refused.contains("T4:4096,A10:8192") && refused.contains("V100"), "{refused}");
    assert_eq!(Segment::open(&any).unwrap().gpus().len(), 3);
    let slower = Settings { time_scale_milli: 5_000, ..setup.settings.clone() };
    assert_eq!(
        Segment::open(&slower).unwrap().time_scale_milli(),
        1_000,
        "the first settings apply"
    );
    drop(first);
    assert_eq!(Segment::open(&other).unwrap().gpus()[0].model.key, "V100");
}

#[test]
fn truncated_or_stale_segment_is_replaced_when_unused() {
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
fn forked_child_is_refused_and_can_open_its_own() {
    let setup = Setup::new();
    let segment = setup.open();
    let child = spawn(|| {
        assert!(segment.is_inherited());
        assert_eq!(segment.transact(|_| Ok(())), Err(Error::Forked));
        let own = setup.open();
        assert_ne!(own.process(), segment.process());
    });
    assert_eq!(outcome(child), Outcome::Finished);
    assert_eq!(segment.transact(|_| Ok(())), Ok(()));
}

#[test]
fn segment_without_free_slots_is_full() {
    let setup = Setup::new();
    let all: Vec<_> = (0..256).map(|_| setup.open()).collect();
    assert!(matches!(Segment::open(&setup.settings), Err(Error::Full("processes"))));
    assert_eq!(all[17].process(), 17);
    drop(all);
    // None of their exits was noticed.
    assert_eq!(setup.open().process(), 0);
}
