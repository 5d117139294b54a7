//! The GPU models that can be simulated, and the list in `CGPU_SIM_GPUS`.

use cgpu_shm::units::Bytes;

use crate::error::Error;
use crate::footprint::Footprint;
use crate::instance::{Instance, Part};
use crate::memory::GRANULE;

/// A GPU model. Figures are from the vendor's data sheets and deviceQuery.
#[derive(Debug, PartialEq, Eq)]
pub struct Model {
    /// The name in `CGPU_SIM_GPUS`.
    pub key: &'static str,
    /// The name that cuDeviceGetName and NVML report.
    pub name: &'static str,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Threads resident on one multiprocessor.
    pub threads_per_multiprocessor: u32,
    /// Default memory size, as NVML's total.
    pub memory_mib: u64,
    /// PCI device id (high half) and vendor id (low half), as in NVML's `pciDeviceId`.
    pub pci_device: u32,
    /// Maximum clock of the multiprocessors in MHz.
    pub core_mhz: u32,
    /// Clock of the memory in MHz.
    pub memory_mhz: u32,
    /// Width of the memory bus in bits.
    pub bus_bits: u32,
    /// Size of the second-level cache.
    pub l2_bytes: u32,
    /// Power limit in watts.
    pub watts: u32,
}

/// Properties of a GPU architecture. Figures are from the programming guide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Bytes of shared memory of one multiprocessor.
    pub shared_per_multiprocessor: u32,
    /// Blocks resident on one multiprocessor.
    pub blocks_per_multiprocessor: u32,
    /// Kernels resident on the GPU.
    pub grids: u32,
}

/// Threads of a warp; a block occupies whole warps.
const WARP: u64 = 32;
/// Registers of one multiprocessor, the same for every architecture here.
const REGISTERS: u64 = 65_536;
/// Registers are allocated to warps in steps of 256.
const REGISTER_STEP: u64 = 256;

impl Model {
    /// Returns the properties of the architecture.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        let (shared_kib, blocks, grids) = match self.capability {
            (6, 0) => (64, 32, 128),
            (6, _) => (96, 32, 32),
            (7, 0) => (96, 32, 128),
            (7, _) => (64, 16, 128),
            (8, 0) => (164, 32, 128),
            (8, 6) => (100, 16, 128),
            (8, _) => (100, 24, 128),
            _ => (228, 32, 128),
        };
        Generation {
            shared_per_multiprocessor: shared_kib << 10,
            blocks_per_multiprocessor: blocks,
            grids,
        }
    }

    /// Returns how many blocks of this many threads, bytes of shared memory and registers per
    /// thread are resident on one multiprocessor; 0 if none fits.
    #[must_use]
    pub fn resident_blocks(&self, threads: u64, shared: u64, registers: u64) -> u64 {
        let generation = self.generation();
        let warps = threads.div_ceil(WARP).max(1);
        let by_threads = u64::from(self.threads_per_multiprocessor) / WARP / warps;
        // From capability 8 on the driver reserves 1 KiB for each block.
        let reserved = if self.capability.0 >= 8 { 1_024 } else { 0 };
        let all = u64::from(generation.shared_per_multiprocessor);
        let by_shared = if shared == 0 { u64::MAX } else { all / (shared + reserved) };
        let by_registers = REGISTERS
            .checked_div((registers * WARP).next_multiple_of(REGISTER_STEP) * warps)
            .unwrap_or(u64::MAX);
        by_threads
            .min(by_shared)
            .min(by_registers)
            .min(u64::from(generation.blocks_per_multiprocessor))
    }
}

macro_rules! models {
    ($($key:literal $name:literal $major:literal.$minor:literal $sms:literal $threads:literal
    $mib:literal $pci:literal
       $core:literal $memory:literal $bus:literal $l2:literal $watts:literal;)*) => {
        /// Every model, oldest architecture first.
        pub static MODELS: &[Model] = &[$(Model {
            key: $key, name: $name, capability: ($major, $minor), multiprocessors: $sms,
            threads_per_multiprocessor: $threads, memory_mib: $mib, pci_device: $pci,
            core_mhz: $core, memory_mhz: $memory, bus_bits: $bus,
            l2_bytes: $l2 << 20, watts: $watts,
        }),*];
    };
}

models! {
    // key name                    cc     SMs thr. MiB    PCI id      core mem  bus  L2  W
    "P100" "Tesla P100-PCIE-16GB"  6 . 0  56  2048 16280  0x15F8_10DE 1328 715  4096 4   250;
    "P4"   "Tesla P4"              6 . 1  20  2048 7611   0x1BB3_10DE 1531 3003 256  2   75;
    "V100" "Tesla V100-SXM2-16GB"  7 . 0  80  2048 16130  0x1DB1_10DE 1530 877  4096 6   300;
    "T4"   "Tesla T4"              7 . 5  40  1024 15109  0x1EB8_10DE 1590 5001 256  4   70;
    "A100" "NVIDIA A100-SXM4-80GB" 8 . 0  108 2048 81920  0x20B2_10DE 1410 1593 5120 40  400;
    "A30"  "NVIDIA A30"            8 . 0  56  2048 24576  0x20B7_10DE 1440 1215 3072 24  165;
    "A10"  "NVIDIA A10"            8 . 6  72  1536 23028  0x2236_10DE 1695 6251 384  6   150;
    "A40"  "NVIDIA A40"            8 . 6  84  1536 46068  0x2235_10DE 1740 7251 384  6   300;
    "L4"   "NVIDIA L4"             8 . 9  58  1536 23034  0x27B8_10DE 2040 6251 192  48  72;
    "L40S" "NVIDIA L40S"           8 . 9  142 1536 46068  0x26B9_10DE 2520 9001 384  96  350;
    "H100" "NVIDIA H100 80GB HBM3" 9 . 0  132 2048 81559  0x2330_10DE 1980 2619 5120 50  700;
    "H200" "NVIDIA H200"           9 . 0  132 2048 143771 0x2335_10DE 1980 3201 6144 60  700;
    "B200" "NVIDIA B200"           10 . 0 148 2048 183359 0x2901_10DE 1965 3996 8192 126 1000;
}

/// The maximum number of GPUs of a machine.
pub const MAX_GPUS: usize = 16;
/// The maximum number of locality domains of a GPU.
pub const MAX_DOMAINS: usize = 4;

/// One GPU of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuSpec {
    /// The model.
    pub model: &'static Model,
    /// Total memory as NVML reports it.
    pub total: Bytes,
    /// A whole GPU, a partitioned one, or an instance.
    pub part: Part,
    /// Its NUMA node and PCIe root.
    pub place: Place,
}

/// NUMA node, 0 to 3, and PCIe root, 1 to 7, of a GPU. The kernel does not know simulated GPUs, so
/// it is the device in the GPU's PCI address: two bits of the node, three of the root. 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place(u8);

impl Place {
    /// Parses `NODE.ROOT`.
    fn parse(text: &str) -> Option<Self> {
        let (node, root) = text.split_once('.')?;
        let (node, root) = (node.parse::<u8>().ok()?, root.parse::<u8>().ok()?);
        (node < 4 && (1..8).contains(&root)).then_some(Self(node << 3 | root))
    }

    pub(crate) const fn of_bits(bits: u64) -> Self {
        Self((bits & Self::MASK) as u8)
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0 as u64
    }

    /// Bits of a place.
    pub(crate) const MASK: u64 = 0x1f;
}

impl GpuSpec {
    /// Parses a list such as `A10:23028,T4:15109`. The size defaults to the model's.
    /// `A100@1.2` is on NUMA node 1 and PCIe root 2. `A100/mig=3g.40gb,2g.20gb` is partitioned, and
    /// its instances follow it.
    ///
    /// # Errors
    /// [`Error::Settings`]; for an unknown model it lists the known ones.
    pub fn parse_list(list: &str) -> Result<Vec<Self>, Error> {
        let mut gpus: Vec<Self> = Vec::new();
        let mut entries = list.split(',').map(str::trim).peekable();
        while let Some(entry) = entries.next() {
            let Some((entry, first)) = entry.split_once("/mig=") else {
                gpus.push(Self::parse(entry)?);
                continue;
            };
            let gpu = Self::parse(entry)?;
            let profile = |text: &str| Instance::parse(text, gpu.total);
            let mut instances: Vec<Instance> = profile(first).into_iter().collect();
            while let Some(next) = entries.peek().and_then(|entry| profile(entry)) {
                instances.push(next);
                entries.next();
            }
            Instance::check(&instances, gpu.model)?;
            let place = gpus.len();
            gpus.push(Self { part: Part::Partitioned, ..gpu });
            gpus.extend((0..).zip(instances).map(|(number, instance)| Self {
                total: instance.memory(gpu.total),
                part: Part::Instance(Instance { gpu: place, number, ..instance }),
                ..gpu
            }));
        }
        if gpus.len() > MAX_GPUS {
            return Err(Error::Settings(format!(
                "CGPU_SIM_GPUS names {} GPUs; at most {MAX_GPUS} are supported",
                gpus.len()
            )));
        }
        Ok(gpus)
    }

    /// Returns the default list: one A10.
    #[must_use]
    pub fn default_list() -> Vec<Self> {
        MODELS
            .iter()
            .filter(|model| model.key == "A10")
            .map(|model| Self::whole(model, model.memory_mib))
            .collect()
    }

    fn parse(entry: &str) -> Result<Self, Error> {
        let Some((entry, place)) = entry.split_once('@') else { return Self::parse_model(entry) };
        let place = Place::parse(place).ok_or_else(|| {
            Error::Settings(format!(
                "CGPU_SIM_GPUS: {place:?} after {entry:?} is not NODE.ROOT, a NUMA node from 0 to 3 \
                 and a PCIe root from 1 to 7"
            ))
        })?;
        Ok(Self { place, ..Self::parse_model(entry)? })
    }

    fn parse_model(entry: &str) -> Result<Self, Error> {
        let (key, size) = match entry.split_once(':') {
            Some((key, size)) => (key, Some(size)),
            None => (entry, None),
        };
        let Some(model) = MODELS.iter().find(|model| model.key.eq_ignore_ascii_case(key)) else {
            let known = MODELS.iter().map(|model| model.key).collect::<Vec<_>>().join(", ");
            return Err(Error::Settings(format!(
                "CGPU_SIM_GPUS: unknown model {key:?} in {entry:?}; known are {known}"
            )));
        };
        let mib = match size {
            None => model.memory_mib,
            Some(text) => match text.parse::<u64>() {
                Ok(mib) if (1_024..=1_048_576).contains(&mib) => mib,
                _ => {
                    return Err(Error::Settings(format!(
                        "CGPU_SIM_GPUS: {text:?} in {entry:?} is not a size in MiB \
                         between 1024 and 1048576"
                    )));
                }
            },
        };
        Ok(Self::whole(model, mib))
    }

    const fn whole(model: &'static Model, mib: u64) -> Self {
        Self { model, total: Bytes::from_mib(mib), part: Part::Whole, place: Place(0) }
    }

    const fn instance(&self) -> Option<Instance> {
        match self.part {
            Part::Instance(instance) => Some(instance),
            Part::Whole | Part::Partitioned => None,
        }
    }

    /// Returns the UUID of the GPU at `index`, a function of model and index alone.
    #[must_use]
    pub fn uuid(&self, index: usize) -> [u8; 16] {
        let mut state = 0x6367_7075_2d73_696d_u64 ^ (index as u64) << 56;
        for byte in self.model.key.bytes() {
            state = crate::kernel::mix(state ^ u64::from(byte));
        }
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&state.to_be_bytes());
        uuid[8..].copy_from_slice(&crate::kernel::mix(state).to_be_bytes());
        // Version 4, variant 1.
        uuid[6] = uuid[6] & 0x0f | 0x40;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        uuid
    }

    /// Returns the model whose GPU has this UUID; none: the GPU is not simulated.
    #[must_use]
    pub fn model_of(uuid: [u8; 16]) -> Option<&'static Model> {
        let whole = |model| Self::whole(model, 0);
        let has = |model: &&'static Model| (0..MAX_GPUS).any(|at| whole(*model).uuid(at) == uuid);
        MODELS.iter().find(has)
    }

    /// Returns its name: of an instance, its GPU's and its profile.
    #[must_use]
    pub fn name(&self) -> String {
        match self.instance() {
            Some(instance) => format!("{} MIG {}", self.model.name, instance.profile()),
            None => self.model.name.to_owned(),
        }
    }

    /// Returns its streaming multiprocessors.
    #[must_use]
    pub fn multiprocessors(&self) -> u32 {
        self.instance().map_or(self.model.multiprocessors, |own| own.multiprocessors(self.model))
    }

    /// Returns whether NVSwitch multicast connects it with others of its kind. These boards have it
    /// from capability 9 on; instances have not.
    #[must_use]
    pub fn has_switch(&self) -> bool {
        self.model.capability.0 >= 9 && self.part == Part::Whole
    }

    /// Returns the number of locality domains. A B200 has one on each of its two dies (measured
    /// with driver 615); an instance has one.
    #[must_use]
    pub fn domains(&self) -> usize {
        match (self.model.capability, self.part) {
            ((10, 0), Part::Whole) => 2,
            _ => 1,
        }
    }

    /// Returns the multiprocessors of each locality domain. Some belong to none: of a B200's 148
    /// each domain has 70 (measured with driver 615).
    #[must_use]
    pub fn domain_multiprocessors(&self) -> u32 {
        match self.domains() {
            1 => self.multiprocessors(),
            _ => 70,
        }
    }

    /// Returns the memory that can be allocated in one locality domain: an equal part of the usable
    /// memory.
    #[must_use]
    pub fn domain_room(&self) -> Bytes {
        Bytes(self.usable().0 / self.domains() as u64 / GRANULE * GRANULE)
    }

    /// Returns domain, bus and device of the GPU at `index`: ascending, so that PCI order is the
    /// list's. An instance has its GPU's.
    #[must_use]
    pub fn pci(&self, index: usize) -> (u32, u32, u32) {
        let index = self.instance().map_or(index, |instance| instance.gpu);
        (0, 0x07 + u32::try_from(index).unwrap_or(u32::MAX), u32::from(self.place.0))
    }

    /// Returns the footprint of a kernel; `None` if a multiprocessor cannot hold one block.
    #[must_use]
    pub fn footprint(
        &self,
        blocks: u64,
        threads: u64,
        shared: u64,
        registers: u64,
    ) -> Option<Footprint> {
        let grids = u64::from(self.model.generation().grids);
        let resident = self.resident(threads, shared, registers)?;
        Some(Footprint::of_blocks(blocks, resident, grids))
    }

    /// Returns the number of waves of a kernel; `None` if a multiprocessor cannot hold one block.
    #[must_use]
    pub fn waves(&self, blocks: u64, threads: u64, shared: u64, registers: u64) -> Option<u64> {
        Some(blocks.div_ceil(self.resident(threads, shared, registers)?))
    }

    /// Returns how many blocks are resident on the GPU; `None` if none fits.
    fn resident(&self, threads: u64, shared: u64, registers: u64) -> Option<u64> {
        let each = self.model.resident_blocks(threads, shared, registers);
        Some(each * u64::from(self.multiprocessors())).filter(|&blocks| blocks > 0)
    }

    /// Returns the memory for contexts and programs; zero for a partitioned GPU.
    #[must_use]
    pub fn usable(&self) -> Bytes {
        if self.part == Part::Partitioned { Bytes::ZERO } else { self.total - self.reserved() }
    }

    /// Returns the driver's own memory, NVML's `reserved`: one eightieth and at least 200 MiB, in
    /// steps of 2 MiB. An A10 of 23028 MiB leaves programs some 22730.
    #[must_use]
    pub fn reserved(&self) -> Bytes {
        Bytes((self.total.0 / 80).max(200 << 20).next_multiple_of(2 << 20))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_list_is_parsed_into_models_and_sizes() {
        let gpus = GpuSpec::parse_list("A10:23028, t4").unwrap();
        assert_eq!(gpus[0].model.key, "A10");
        assert_eq!(gpus[0].total, Bytes::from_mib(23028));
        assert_eq!(gpus[1].model.name, "Tesla T4");
        assert_eq!(gpus[1].total, Bytes::from_mib(15109));
    }

    #[test]
    fn invalid_gpu_list_is_refused_with_the_reason() {
        for (list, part) in [
            ("B17", "known are P100, P4"),
            ("", "unknown model"),
            ("A10,", "unknown model"),
            ("A10:", "not a size"),
            ("A10:-5", "not a size"),
            ("A10:12", "between 1024"),
            ("A10@4.1", "NODE.ROOT, a NUMA node from 0 to 3"),
            ("A10:12000@0.0", "not NODE.ROOT"),
            ("A10@1", "not NODE.ROOT"),
            ("B17@0.1", "known are P100, P4"),
            (&["T4"; 17].join(","), "17 GPUs"),
        ] {
            let error = GpuSpec::parse_list(list).unwrap_err().to_string();
            assert!(error.contains(part), "{list}: {error}");
        }
    }

    #[test]
    fn resident_blocks_are_limited_by_the_scarcest_resource() {
        let gpu = |key: &str| GpuSpec::parse_list(key).unwrap()[0].model;
        for (key, threads, shared, registers, blocks) in [
            ("A10", 256, 0, 32, 6),       // 1536 threads
            ("A10", 32, 0, 32, 16),       // 16 blocks
            ("A10", 1024, 0, 32, 1),      // two of them would be 2048 threads
            ("A10", 33, 0, 32, 16),       // two warps each, and at most 16 blocks
            ("A10", 256, 49_152, 32, 2),  // 100 KiB
            ("A10", 256, 102_400, 32, 0), // and the driver's own KiB
            ("V100", 256, 49_152, 32, 2), // 96 KiB, none of it the driver's
            ("H100", 256, 0, 32, 8),      // 2048 threads
            ("H100", 256, 0, 128, 2),     // 65536 registers
            ("T4", 128, 0, 0, 8),
        ] {
            assert_eq!(
                gpu(key).resident_blocks(threads, shared, registers),
                blocks,
                "{key} {threads} {shared}"
            );
        }
    }

    #[test]
    fn place_of_a_gpu_is_in_its_pci_address() {
        let gpus = GpuSpec::parse_list("A100@1.2,T4:15109@3.7,T4,A100:40960@0.1/mig=3g.20gb");
        let gpus = gpus.unwrap();
        let addresses: Vec<_> = gpus.iter().enumerate().map(|(at, gpu)| gpu.pci(at)).collect();
        let expected = [(0, 7, 0b01_010), (0, 8, 0b11_111), (0, 9, 0), (0, 10, 1), (0, 10, 1)];
        assert_eq!(addresses, expected);
        assert!(gpus.iter().all(|gpu| Place::of_bits(gpu.place.bits()) == gpu.place));
    }

    #[test]
    fn uuid_is_unique_per_index_and_reproducible() {
        let gpus = GpuSpec::parse_list("A10,A10,T4").unwrap();
        let uuids: Vec<_> = gpus.iter().enumerate().map(|(index, gpu)| gpu.uuid(index)).collect();
        assert_ne!(uuids[0], uuids[1]);
        assert_ne!(uuids[1], uuids[2]);
        assert_eq!(uuids[0], GpuSpec::parse_list("A10:20000").unwrap()[0].uuid(0));
    }
}
