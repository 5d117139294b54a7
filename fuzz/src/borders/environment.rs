//! Environment variables with any bytes, on any GPUs. They give a decision or one message, and a
//! limit never exceeds its GPU's memory.
//!
//! An input is a byte that selects the GPUs, then `NAME=VALUE` strings separated by line breaks; a
//! name is a digit.

use std::ffi::{CStr, OsString};
use std::os::unix::ffi::OsStringExt;

use cgpu_settings::{Decision, Variables};
use cgpu_settings::{Environment, GpuInfo, Inventory};
use cgpu_shm::units::Bytes;
use cgpu_shm::uuid::Uuid;

const NAMES: [&CStr; 11] = [
    c"ALIYUN_COM_GPU_MEM_CONTAINER",
    c"ALIYUN_COM_GPU_MEM_DEV",
    c"CGPU_MEM_UNIT",
    c"NVIDIA_VISIBLE_DEVICES",
    c"ALIYUN_COM_GPU_VISIBLE_DEVICES",
    c"ALIYUN_COM_GPU_SCHD_WEIGHT",
    c"ALIYUN_COM_GPU_CORE_PERCENTAGE",
    c"ALIYUN_COM_GPU_HIGH_PRIO",
    c"CGPU_DISABLE",
    c"CGPU_DIR",
    c"CGPU_KEEP_DEEPBIND",
];

struct FakeEnvironment(Vec<(usize, Vec<u8>)>);

impl Environment for FakeEnvironment {
    fn variable(&self, name: &CStr) -> Option<OsString> {
        let (_, value) = self.0.iter().rfind(|(number, _)| NAMES.get(*number) == Some(&name))?;
        Some(OsString::from_vec(value.clone()))
    }
    fn user(&self) -> u32 {
        1000
    }
    fn pid_namespace(&self) -> u64 {
        1
    }
    fn process_name(&self) -> Vec<u8> {
        Vec::new()
    }
    fn host_name(&self) -> String {
        String::new()
    }
}

fn gpus(shape: u8) -> Vec<GpuInfo> {
    let gpu = |number: u8| {
        // Some are MIG instances, some UUIDs have the same beginning.
        let instance = if shape & 8 != 0 { u64::from(number % 3) } else { 0 };
        let mut uuid = [if shape & 16 == 0 { number } else { 7 }; 16];
        uuid[15] = number;
        let total = Bytes::from_mib(15109 + 1000 * u64::from(number));
        GpuInfo { uuid: Uuid(uuid), total, order: u64::from(number / 3) << 8 | instance }
    };
    (0..shape & 7)
        .chain((0..10).filter(|_| shape & 64 != 0).map(|extra| extra + 8))
        .map(gpu)
        .collect()
}

pub(crate) fn check(input: &[u8]) {
    let Some((&shape, text)) = input.split_first() else { return };
    let lines = text.split(|byte| *byte == b'\n').filter_map(|line| {
        let (&name, value) = line.split_first()?;
        // A variable cannot hold a NUL.
        let value = value.iter().copied().filter(|byte| *byte != 0).collect();
        Some((usize::from(name.wrapping_sub(b'0')), value))
    });
    let environment = FakeEnvironment(lines.collect());
    let gpus = gpus(shape);
    let inventory = Inventory { gpus: &gpus, partitioned: &[], complete: shape & 32 == 0 };
    let variables = Variables::read(&environment);
    let _ = variables.unlimited(inventory);
    match variables.decide(inventory) {
        Ok(Decision::Off(_)) => {}
        Ok(Decision::On(settings)) => {
            assert!((1..=16).contains(&settings.gpus.len()) && (1..=25).contains(&settings.weight));
            for (index, limited) in settings.gpus.iter().enumerate() {
                assert!(
                    limited.limit > Bytes::ZERO && limited.limit <= limited.total,
                    "{limited:?}"
                );
                let gpu =
                    gpus.iter().find(|gpu| gpu.uuid == limited.uuid).expect("a GPU that is there");
                assert_eq!(gpu.total, limited.total);
                assert!(
                    settings.gpus[..index].iter().all(|other| other.uuid != limited.uuid),
                    "each GPU once"
                );
            }
        }
        Err(refusal) => {
            let message = refusal.message();
            assert!(
                !message.is_empty() && !message.contains('\n') && message.len() < 1000,
                "{message}"
            );
        }
    }
}
