//! Compute settings of `cgpu run`: options, else the variables that a container would have.

use std::env;
use std::ffi::OsStr;

use anyhow::{Result, bail};
use clap::Args;

use crate::claim::Variables;

const WEIGHT: &str = "ALIYUN_COM_GPU_SCHD_WEIGHT";
const PERCENT: &str = "ALIYUN_COM_GPU_CORE_PERCENTAGE";
const HIGH: &str = "ALIYUN_COM_GPU_HIGH_PRIO";

#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Compute {
    /// Set the weight, for a share in proportion to all weights [default:
    /// ALIYUN_COM_GPU_SCHD_WEIGHT]
    #[arg(long, value_name = "1..25", value_parser = whole::<25>)]
    pub(crate) weight: Option<u32>,
    /// Set the percentage of the GPU under policy 3 [default: ALIYUN_COM_GPU_CORE_PERCENTAGE]
    #[arg(long, value_name = "1..100", value_parser = whole::<100>)]
    pub(crate) percent: Option<u32>,
    /// Give high priority, up to the GPU's prio_ratio [default: ALIYUN_COM_GPU_HIGH_PRIO]
    #[arg(long)]
    high_prio: bool,
    /// The value of the variable.
    #[arg(skip)]
    variable_high_prio: Option<bool>,
}

impl Compute {
    /// Fills in the variables where no option is given.
    pub(crate) fn with_environment(self) -> Result<Self> {
        self.with(|name| env::var_os(name))
    }

    fn with<T: AsRef<OsStr>>(self, read: impl Fn(&str) -> Option<T>) -> Result<Self> {
        let number = |name: &str, least: u32, most: u32, remedy: &str| -> Result<Option<u32>> {
            let Some(value) = read(name) else { return Ok(None) };
            let text = value.as_ref().to_string_lossy();
            match within(&text, least, most) {
                Ok(found) => Ok(Some(found)),
                Err(expected) => {
                    bail!("{name} is `{}`, {expected}; {remedy}", text.escape_default())
                }
            }
        };
        let weight = match self.weight {
            Some(weight) => Some(weight),
            None => number(WEIGHT, 1, 25, "correct it, or unset it for 1")?,
        };
        let percent = match self.percent {
            Some(percent) => Some(percent),
            None => number(PERCENT, 1, 100, "correct or unset it")?,
        };
        let variable_high_prio =
            number(HIGH, 0, 1, "set 1 for high priority, or unset it")?.map(|high| high == 1);
        Ok(Self { weight, percent, variable_high_prio, ..self })
    }

    /// Returns whether it has high priority; `None` if neither option nor variable is set.
    pub(crate) fn high_priority(self) -> Option<bool> {
        if self.high_prio { Some(true) } else { self.variable_high_prio }
    }

    /// Sets the variables of the container's processes.
    pub(crate) fn export(self, variables: &mut Variables) {
        let high = self.high_priority().map(u32::from);
        for (name, value) in [(WEIGHT, self.weight), (PERCENT, self.percent), (HIGH, high)] {
            if let Some(value) = value {
                variables.set(name, value.to_string());
            }
        }
    }
}

/// Parses an option's number from 1 to `MOST`.
fn whole<const MOST: u32>(text: &str) -> Result<u32, String> {
    within(text, 1, MOST)
}

/// Parses a number within bounds; blanks around it are ignored.
///
/// # Errors
/// What was expected.
fn within(text: &str, least: u32, most: u32) -> Result<u32, String> {
    let text = text.trim();
    let number = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok());
    let number = number.flatten().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("expected a whole number from {least} to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Options {
        #[command(flatten)]
        compute: Compute,
    }

    #[test]
    fn invalid_option_names_the_range() {
        for (option, value, most) in [
            ("--weight", "heavy", 25),
            ("--weight", "26", 25),
            ("--weight", "0", 25),
            ("--weight", "", 25),
            ("--percent", "30%", 100),
            ("--percent", "101", 100),
        ] {
            let refused = Options::try_parse_from(["cgpu", option, value]).unwrap_err().to_string();
            let expected = format!("expected a whole number from 1 to {most}");
            assert!(refused.contains(option) && refused.contains(&expected), "{refused}");
        }
        let options = Options::try_parse_from(["cgpu", "--weight", "25"]).unwrap();
        assert_eq!(options.compute.weight, Some(25));
    }

    fn with(options: Compute, variables: &[(&str, &str)]) -> Result<Compute> {
        options
            .with(|name| variables.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned()))
    }

    #[test]
    fn options_win_over_variables() {
        let set = [(WEIGHT, "3"), (PERCENT, " 30 "), (HIGH, "1")];
        let compute = with(Compute::default(), &set).unwrap();
        assert_eq!(
            (compute.weight, compute.percent, compute.high_priority()),
            (Some(3), Some(30), Some(true))
        );
        let options = Compute { weight: Some(5), ..Compute::default() };
        assert_eq!(with(options, &set).unwrap().weight, Some(5));
        let options = Compute { high_prio: true, ..Compute::default() };
        assert_eq!(with(options, &[(HIGH, "0")]).unwrap().high_priority(), Some(true));
        assert_eq!(with(Compute::default(), &[]).unwrap(), Compute::default());
    }

    #[test]
    fn invalid_variable_is_refused() {
        for (name, value) in [
            (WEIGHT, "0"),
            (WEIGHT, "26"),
            (WEIGHT, "heavy"),
            (WEIGHT, ""),
            (WEIGHT, "+3"),
            (PERCENT, "0"),
            (PERCENT, "101"),
            (PERCENT, "30%"),
            (HIGH, "2"),
            (HIGH, "yes"),
        ] {
            let refused = with(Compute::default(), &[(name, value)]).unwrap_err().to_string();
            assert!(
                refused.starts_with(&format!("{name} is `{value}`, expected a whole number from")),
                "{refused}"
            );
        }
    }
}
