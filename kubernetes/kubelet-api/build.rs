//! Compiles the kubelet's APIs without `protoc`.

use std::error::Error;

const APIS: [&str; 4] =
    ["device_plugin.proto", "dra.proto", "dra_health.proto", "registration.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    for api in APIS {
        println!("cargo:rerun-if-changed={api}");
    }
    let files = protox::compile(APIS, ["."])?;
    tonic_prost_build::configure().btree_map(".").compile_fds(files)?;
    Ok(())
}
