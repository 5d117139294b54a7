//! Scripts that package managers run before and after they install and remove files: the functions
//! of `scripts.sh`, and the call of one of them.

use cgpu_shm::layout::LAYOUT_VERSION;

/// When a script is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    BeforeInstallation,
    AfterInstallation,
    BeforeRemoval,
    AfterRemoval,
}

/// All of them, with Debian's names.
pub(crate) const ALL: [(When, &str); 4] = [
    (When::BeforeInstallation, "preinst"),
    (When::AfterInstallation, "postinst"),
    (When::BeforeRemoval, "prerm"),
    (When::AfterRemoval, "postrm"),
];

/// Returns Debian's script. dpkg's first argument says what it does.
pub(crate) fn debian(when: When, layout: u32) -> String {
    let call = match when {
        When::BeforeInstallation => {
            "case $1 in install) before_installation '' ;; upgrade) before_installation upgrade ;; \
             esac"
        }
        When::AfterInstallation => "case $1 in configure) after_installation ;; esac",
        When::BeforeRemoval => "case $1 in remove) before_removal ;; esac",
        When::AfterRemoval => "case $1 in remove) after_removal ;; purge) after_purge ;; esac",
    };
    script(call, layout)
}

/// Returns RPM's script. Its first argument is the number of packages of this name that there will
/// be.
pub(crate) fn rpm(when: When, layout: u32) -> String {
    let call = match when {
        When::BeforeInstallation => {
            "if [ \"$1\" -gt 1 ]; then before_installation upgrade; else before_installation ''; fi"
        }
        When::AfterInstallation => "after_installation",
        When::BeforeRemoval => "[ \"$1\" -gt 0 ] || before_removal",
        When::AfterRemoval => "[ \"$1\" -gt 0 ] || after_removal",
    };
    script(call, layout)
}

fn script(call: &str, layout: u32) -> String {
    let functions = include_str!("scripts.sh");
    format!("#!/bin/sh\nset -eu\nLAYOUT={layout}\n{functions}\n{call}\n")
}

/// The layout of shared memory that this release uses.
pub const LAYOUT: u32 = LAYOUT_VERSION;
