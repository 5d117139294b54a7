//! Command line of the controller.

use cgpu_kubernetes_client::Access;
use clap::Parser;

/// Make the ResourceClaimTemplates that translated pods name, and delete those that pods no longer
/// name
#[derive(Debug, Parser)]
#[command(name = "cgpu-dra-controller", version)]
pub(crate) struct Options {
    /// Seconds after which a template that no pod names is deleted
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 86_400,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub(crate) retention: u64,
    #[command(flatten)]
    pub(crate) access: Access,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn flags_are_consistent() {
        Options::command().debug_assert();
        assert_eq!(Options::try_parse_from(["x"]).unwrap().retention, 86_400);
        assert!(Options::try_parse_from(["x", "--retention", "0"]).is_err());
    }
}
