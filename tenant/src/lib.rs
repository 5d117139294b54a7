//! The container's side of cgpu: settings, ledger, gate, settlement
