//! Files of settings with any bytes: `settings.json`, `monitor.toml` and `runtime.toml`. What is
//! accepted is within its ranges, and `settings.json` is written and read back unchanged. One that
//! is refused is set aside as it is.

use std::fs;
use std::path::Path;

use cgpu_client::device_id::DeviceId;
use cgpu_monitor::config::{Config, Sources};
use cgpu_monitor::settings::{Found, GpuSettings, Settings};
use cgpu_shm::units::Nanos;
use cgpu_shm::uuid::Uuid;
use tempfile::TempDir;

/// Checks that settings are within their ranges and survive a restart.
pub(super) fn check_settings(folder: &Path, settings: &Settings) {
    settings.gpus.values().for_each(check_gpu);
    for container in settings.containers.values() {
        assert!(container.weight.is_none_or(|weight| (1..=25).contains(&weight)), "{container:?}");
    }
    settings.save(folder).expect("settings can be saved");
    let saved = Settings::load(folder).expect("settings can be read");
    assert_eq!(saved, Found::Settings(settings.clone()));
}

fn check_gpu(gpu: &GpuSettings) {
    assert!(gpu.policy.is_none_or(|policy| policy <= 5), "{gpu:?}");
    assert!((1..=25).contains(&gpu.max_inst()), "{gpu:?}");
    assert!((20..=99).contains(&gpu.prio_ratio()), "{gpu:?}");
}

fn check_json(folder: &Path, input: &[u8]) {
    let file = folder.join("settings.json");
    fs::write(&file, input).expect("a file");
    match Settings::load(folder).expect("the file can be read and renamed") {
        Found::Settings(settings) => check_settings(folder, &settings),
        Found::Refused(message) => {
            assert!(!message.is_empty() && !file.exists(), "{message}");
            let aside = fs::read(folder.join("settings.json.refused")).expect("it is set aside");
            assert_eq!(aside, input);
        }
    }
}

fn check_toml(folder: &Path, input: &[u8]) {
    let file = folder.join("any.toml");
    fs::write(&file, input).expect("a file");
    let source = Sources { path: Some(file.clone()), root: Some("/run/x".into()), tree: None };
    match Config::load(source) {
        Ok(config) => {
            assert!(config.root == Path::new("/run/x") && config.state != Path::new(""));
            for gpu in 0..3 {
                let (index, uuid) = (DeviceId::of_gpu(gpu), Uuid([1; 16]));
                check_gpu(&config.start.gpu(index, uuid));
                let slice = config.start.tuning(index, uuid).base_slice;
                assert!(slice > Nanos::ZERO && slice <= Nanos::from_millis(20_000), "{slice:?}");
            }
        }
        Err(error) => assert!(format!("{error:#}").contains("any.toml")),
    }
    match cgpu_runtime::config::Config::load(Some(&file)) {
        Ok(config) => assert!(config.root.is_absolute()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

thread_local! {
    static FOLDER: TempDir = TempDir::with_prefix_in("cgpu-fuzz-", "/dev/shm").expect("a folder");
}

pub(crate) fn check(input: &[u8]) {
    FOLDER.with(|folder| {
        check_json(folder.path(), input);
        check_toml(folder.path(), input);
    });
}
