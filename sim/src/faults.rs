//! Injected faults (`CGPU_SIM_FAULT`): chosen calls return an error, hang or kill their process.
//!
//! ```text
//! CGPU_SIM_FAULT = NAME:WHEN:CODE[,NAME:WHEN:CODE...]
//!
//!   NAME   a symbol of the driver or of NVML, or a prefix and a star: cuMemAlloc_v2, cuGraph*, *
//!   WHEN   3      the third call in the process
//!          3+     every call from the third on
//!          p0.01  each call with that probability, drawn from CGPU_SIM_SEED:
//!                 the same calls give the same faults
//!   CODE   a number, or its name: 2, CUDA_ERROR_OUT_OF_MEMORY, NVML_ERROR_GPU_IS_LOST
//!          KILL        the process is killed (SIGKILL) before the call does anything
//!          KILL_AFTER  it is killed when the call has done everything, before it returns
//!          HANG        the call does nothing and never returns
//! ```
//!
//! The first entry that applies decides. Each entry counts every call that matches its name. A name
//! with a star that matches symbols of both libraries applies to both, unless the code is the name
//! of an error of one of them.

use cgpu_abi::nvml_types::nvmlReturn_t;
use cgpu_abi::types::CUresult;
use cgpu_abi::{DRIVER, NVML};
use cgpu_shm::atomic::{AtomicU64, Ordering};

use crate::error::Error;
use crate::kernel::mix;

/// A library whose calls can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// libcuda.
    Driver,
    /// libnvidia-ml.
    Nvml,
}

/// The injected faults of one library.
#[derive(Debug, Default)]
pub struct Faults {
    rules: Vec<Rule>,
}

/// The effect of a fault on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// The call returns this error and does nothing else.
    Error(u32),
    /// The process is killed before the call does anything.
    Kill,
    /// The process is killed when the call has done everything, before it returns.
    KillAfter,
    /// The call does nothing and never returns.
    Hang,
}

#[derive(Debug)]
struct Rule {
    /// By position in the library's table.
    named: Vec<bool>,
    when: When,
    fault: InjectedFault,
    seed: u64,
    calls: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    Nth(u64),
    From(u64),
    /// In parts of 2^64.
    Chance(u64),
}

impl Library {
    fn symbols(self) -> Vec<&'static str> {
        match self {
            Self::Driver => DRIVER.iter().map(|row| row.symbol).collect(),
            Self::Nvml => NVML.iter().map(|row| row.symbol).collect(),
        }
    }

    pub(crate) fn symbol(self, position: usize) -> &'static str {
        match self {
            Self::Driver => DRIVER[position].symbol,
            Self::Nvml => NVML[position].symbol,
        }
    }

    fn code(self, name: &str) -> Option<u32> {
        let is_it = |text: Option<&core::ffi::CStr>| {
            text.is_some_and(|text| text.to_bytes() == name.as_bytes())
        };
        match self {
            Self::Driver => CUresult::ALL.iter().find(|code| is_it(code.name())).map(|code| code.0),
            Self::Nvml => {
                nvmlReturn_t::ALL.iter().find(|code| is_it(code.name())).map(|code| code.0)
            }
        }
    }
}

impl Faults {
    /// Reads `CGPU_SIM_FAULT` and `CGPU_SIM_SEED`.
    ///
    /// # Errors
    /// [`Error::Settings`] naming the variable, what was expected and what it was.
    pub fn from_environment(library: Library) -> Result<Self, Error> {
        let variable =
            |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let seed = match variable("CGPU_SIM_SEED").filter(|text| !text.is_empty()) {
            None => 0,
            Some(text) => crate::settings::seed(&text)?,
        };
        Self::parse(&variable("CGPU_SIM_FAULT").unwrap_or_default(), seed, library)
    }

    /// Parses a list of faults and keeps those of one library.
    ///
    /// # Errors
    /// [`Error::Settings`] with the first invalid entry.
    pub fn parse(list: &str, seed: u64, library: Library) -> Result<Self, Error> {
        let mut rules = Vec::new();
        for (place, entry) in
            list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).enumerate()
        {
            let seed = mix(seed ^ mix(place as u64 + 1));
            rules.extend(Rule::parse(entry, seed, library).map_err(Error::Settings)?);
        }
        Ok(Self { rules })
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Counts a call of the function at this position of its table, and returns its fault if it has
    /// one.
    #[must_use]
    pub fn next_fault(&self, position: usize) -> Option<InjectedFault> {
        let mut fault = None;
        for rule in self.rules.iter().filter(|rule| rule.named.get(position) == Some(&true)) {
            // Relaxed: every call gets a distinct number; no other memory depends on it.
            let call = rule.calls.fetch_add(1, Ordering::Relaxed) + 1;
            let applies = match rule.when {
                When::Nth(nth) => call == nth,
                When::From(first) => call >= first,
                When::Chance(chance) => mix(rule.seed ^ mix(call)) < chance,
            };
            if applies {
                fault = fault.or(Some(rule.fault));
            }
        }
        fault
    }
}

impl Rule {
    /// Parses an entry; `None` if it concerns the other library.
    fn parse(entry: &str, seed: u64, library: Library) -> Result<Option<Self>, String> {
        let wrong = |what: &str| {
            format!(
                "CGPU_SIM_FAULT: {entry:?}: {what}; expected NAME:WHEN:CODE, such as \
                 cuMemAlloc_v2:3:2, cuMemAlloc_v2:2+:CUDA_ERROR_OUT_OF_MEMORY or \
                 cuLaunchKernel:p0.01:719"
            )
        };
        let parts: Vec<&str> = entry.split(':').collect();
        let [name, when, code] = parts[..] else {
            return Err(wrong("it does not have three parts"));
        };
        let named = |library: Library| -> Vec<bool> {
            let fits = |symbol: &str| match name.strip_suffix('*') {
                Some(beginning) => symbol.starts_with(beginning),
                None => symbol == name,
            };
            library.symbols().into_iter().map(fits).collect()
        };
        let any = |named: &[bool]| named.contains(&true);
        let (driver, nvml) = (named(Library::Driver), named(Library::Nvml));
        if !any(&driver) && !any(&nvml) {
            return Err(wrong("neither the driver nor NVML has a function of that name"));
        }
        let when =
            When::parse(when).ok_or_else(|| wrong("WHEN is neither a count nor a probability"))?;
        let answers = |code: Option<u32>| code.map(InjectedFault::Error);
        let (of_driver, of_nvml) = match (code, code.parse()) {
            ("KILL", _) => (Some(InjectedFault::Kill), Some(InjectedFault::Kill)),
            ("KILL_AFTER", _) => (Some(InjectedFault::KillAfter), Some(InjectedFault::KillAfter)),
            ("HANG", _) => (Some(InjectedFault::Hang), Some(InjectedFault::Hang)),
            (_, Ok(code)) => (answers(Some(code)), answers(Some(code))),
            (name, Err(_)) => {
                (answers(Library::Driver.code(name)), answers(Library::Nvml.code(name)))
            }
        };
        if of_driver == Some(InjectedFault::Error(0)) && of_nvml == of_driver {
            return Err(wrong("CODE 0 is success, not an error"));
        }
        if (of_driver.is_none() || !any(&driver)) && (of_nvml.is_none() || !any(&nvml)) {
            return Err(wrong("CODE is neither a number nor an error of that library"));
        }
        let (named, fault) = match library {
            Library::Driver => (driver, of_driver),
            Library::Nvml => (nvml, of_nvml),
        };
        let rule = fault.filter(|_| any(&named)).map(|fault| Self {
            named,
            when,
            fault,
            seed,
            calls: AtomicU64::new(0),
        });
        Ok(rule)
    }
}

impl When {
    fn parse(text: &str) -> Option<Self> {
        let count = |text: &str| text.parse().ok().filter(|&count: &u64| count > 0);
        if let Some(chance) = text.strip_prefix('p') {
            let chance: f64 = chance.parse().ok()?;
            // Rounds to the nearest value; 1 saturates.
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss
            )]
            let parts = (chance * u64::MAX as f64) as u64;
            return (0.0..=1.0).contains(&chance).then_some(Self::Chance(parts));
        }
        match text.strip_suffix('+') {
            Some(first) => count(first).map(Self::From),
            None => count(text).map(Self::Nth),
        }
    }
}

#[cfg(test)]
mod tests {
    use cgpu_abi::{driver_index, nvml_index};

    use super::*;

    fn driver(list: &str) -> Faults {
        Faults::parse(list, 7, Library::Driver).unwrap()
    }

    fn faults_of(faults: &Faults, position: usize, calls: usize) -> Vec<u32> {
        let answer = |fault| match fault {
            None => 0,
            Some(InjectedFault::Error(code)) => code,
            Some(dies) => panic!("{dies:?}"),
        };
        (0..calls).map(|_| answer(faults.next_fault(position))).collect()
    }

    #[test]
    fn nth_call_alone_fails() {
        let faults = driver("cuMemAlloc_v2:3:2, cuMemFree_v2:1:700");
        assert_eq!(faults_of(&faults, driver_index::cuMemAlloc_v2, 4), [0, 0, 2, 0]);
        assert_eq!(faults_of(&faults, driver_index::cuMemFree_v2, 4), [700, 0, 0, 0]);
        assert_eq!(faults_of(&faults, driver_index::cuMemAlloc, 4), [0, 0, 0, 0]);
    }

    #[test]
    fn every_call_from_the_nth_fails() {
        let faults = driver("cuMemAlloc_v2:2+:CUDA_ERROR_OUT_OF_MEMORY");
        assert_eq!(faults_of(&faults, driver_index::cuMemAlloc_v2, 4), [0, 2, 2, 2]);
    }

    #[test]
    fn kill_fault_applies_to_the_named_call() {
        let faults = driver("cuMemAlloc_v2:2:KILL,cuMemFree_v2:1:KILL_AFTER");
        assert_eq!(faults.next_fault(driver_index::cuMemAlloc_v2), None);
        assert_eq!(faults.next_fault(driver_index::cuMemAlloc_v2), Some(InjectedFault::Kill));
        assert_eq!(faults.next_fault(driver_index::cuMemFree_v2), Some(InjectedFault::KillAfter));
        let nvml = Faults::parse("nvml*:p1:KILL", 0, Library::Nvml).unwrap();
        assert_eq!(nvml.next_fault(nvml_index::nvmlInit_v2), Some(InjectedFault::Kill));
    }

    #[test]
    fn hang_fault_applies_to_the_named_call_of_either_library() {
        let list = "nvmlInit*:2:HANG,cuInit:1:HANG";
        let nvml = Faults::parse(list, 0, Library::Nvml).unwrap();
        assert_eq!(nvml.next_fault(nvml_index::nvmlInit_v2), None);
        assert_eq!(nvml.next_fault(nvml_index::nvmlInit), Some(InjectedFault::Hang));
        assert_eq!(driver(list).next_fault(driver_index::cuInit), Some(InjectedFault::Hang));
    }

    #[test]
    fn star_counts_all_matching_calls() {
        let faults = driver("cuMemAlloc*:2:2");
        assert_eq!(faults_of(&faults, driver_index::cuMemAlloc_v2, 1), [0]);
        assert_eq!(faults_of(&faults, driver_index::cuMemAllocHost_v2, 2), [2, 0]);
        assert_eq!(faults_of(&driver("*:1:999"), driver_index::cuInit, 2), [999, 0]);
    }

    #[test]
    fn first_applicable_entry_decides() {
        let faults = driver("cuInit:2:100,cuInit:1+:999");
        assert_eq!(faults_of(&faults, driver_index::cuInit, 3), [999, 100, 999]);
    }

    #[test]
    fn probability_faults_depend_on_the_seed() {
        let draw = |seed| {
            let faults = Faults::parse("cuLaunchKernel:p0.25:719", seed, Library::Driver).unwrap();
            faults_of(&faults, driver_index::cuLaunchKernel, 4_000)
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let struck = draw(1).iter().filter(|&&code| code == 719).count();
        assert!((900..1_100).contains(&struck), "{struck} of 4000");
        assert_eq!(faults_of(&driver("cuInit:p0:1"), driver_index::cuInit, 100), [0; 100]);
        assert_eq!(faults_of(&driver("cuInit:p1:1"), driver_index::cuInit, 100), [1; 100]);
    }

    #[test]
    fn each_library_keeps_its_own_entries() {
        let list =
            "nvmlDeviceGetMemoryInfo:1:NVML_ERROR_GPU_IS_LOST,cuInit:1:3,*:3+:NVML_ERROR_UNKNOWN";
        let nvml = Faults::parse(list, 0, Library::Nvml).unwrap();
        assert_eq!(faults_of(&nvml, nvml_index::nvmlDeviceGetMemoryInfo, 4), [15, 0, 999, 999]);
        let driver = driver(list);
        assert_eq!(faults_of(&driver, driver_index::cuInit, 4), [3, 0, 0, 0]);
    }

    #[test]
    fn invalid_fault_list_is_refused() {
        for list in [
            "cuMemAlloc_v2",
            "cuMemAlloc_v2:1",
            "cuMemAlloc_v2:0:2",
            "cuMemAlloc_v2:0+:2",
            "cuMemAlloc_v2:x:2",
            "cuMemAlloc_v2:p2:2",
            "cuMemAlloc_v2:pNaN:2",
            "cuMemAlloc_v2:1:0",
            "cuMemAlloc_v2:1:NVML_ERROR_UNKNOWN",
            "cuMemAlloc_v2:1:CUDA_ERROR_NONE",
            "cuNo:1:2",
            "cuNo*:1:2",
            "cuInit:1:2:3",
        ] {
            for library in [Library::Driver, Library::Nvml] {
                let error = Faults::parse(list, 0, library).unwrap_err().to_string();
                assert!(
                    error.contains("CGPU_SIM_FAULT") && error.contains("NAME:WHEN:CODE"),
                    "{list}: {error}"
                );
            }
        }
    }
}
