//! The cards, as NVML and the driver show them before anything is virtual.

use core::ffi::{CStr, c_int, c_uint};

use cgpu_abi::nvml_types::{nvmlDevice_t, nvmlMemory_t, nvmlPciInfo_t, nvmlReturn_t};
use cgpu_abi::types::{CUcontext, CUdevice, CUresult, CUuuid};
use cgpu_shm::atomic::{AtomicUsize, Ordering::Relaxed};
use cgpu_tenant::{Bytes, Card, CardInfo, Found, System, Tenant, Told, Uuid};

use crate::process::Starter;
use crate::{driver, nvml, nvml_uses};

/// Which of the driver's devices are on the books, by ordinal.
pub(crate) struct Devices {
    devices: Vec<Device>,
}

struct Device {
    /// None: not sliced.
    card: Option<Card>,
    /// Its primary context, as last retained.
    primary: AtomicUsize,
}

impl Devices {
    /// No devices.
    pub(crate) const NONE: &Devices = &Devices { devices: Vec::new() };

    /// The devices of the initialised driver.
    pub(crate) fn of(tenant: &Tenant) -> Devices {
        let card = |device| tenant.card(driver_uuid(device)?);
        let devices = devices().map(|device| Device { card: card(device), primary: AtomicUsize::new(0) });
        Devices { devices: devices.collect() }
    }

    /// The card of a device; none: not sliced, or no such device.
    #[inline]
    pub(crate) fn card(&self, device: CUdevice) -> Option<Card> {
        self.get(device)?.card
    }

    /// Whether there is a limit to keep on any of them.
    pub(crate) fn any_limited(&self, tenant: &Tenant) -> bool {
        self.devices.iter().filter_map(|device| device.card).any(|card| tenant.limit(card).is_some())
    }

    /// The primary context of a device, as last retained.
    pub(crate) fn primary(&self, device: CUdevice) -> CUcontext {
        CUcontext(self.get(device).map_or(0, |device| device.primary.load(Relaxed)))
    }

    /// The program has retained the primary context of a device.
    pub(crate) fn set_primary(&self, device: CUdevice, context: CUcontext) {
        if let Some(device) = self.get(device) {
            device.primary.store(context.0, Relaxed);
        }
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = CUdevice> {
        (0..self.devices.len()).filter_map(|ordinal| CUdevice::try_from(ordinal).ok())
    }

    /// The only one there is.
    #[inline]
    pub(crate) fn only(&self) -> Option<CUdevice> {
        (self.devices.len() == 1).then_some(0)
    }

    /// The device that is a card.
    pub(crate) fn of_card(&self, card: Card) -> Option<CUdevice> {
        self.all().find(|device| self.card(*device) == Some(card))
    }

    /// A device is named by its ordinal.
    fn get(&self, device: CUdevice) -> Option<&Device> {
        self.devices.get(usize::try_from(device).ok()?)
    }
}

/// All cards, as the monitor has told, or a process of the container before this one; else NVML's list, which no variable of the program hides from; where there is no NVML, the driver's. A
/// card that is partitioned into MIG instances is these instead: no program computes on the card itself.
pub(crate) fn inventory(starter: Starter) -> Found {
    // SAFETY: the name is NUL-ended.
    let hides = !unsafe { libc::getenv(c"CUDA_VISIBLE_DEVICES".as_ptr()) }.is_null();
    if starter == Starter::Driver
        && let Some(told) = Told::read(&System)
        && let Some(seen) = devices().map(driver_card).collect::<Option<Vec<_>>>()
        && let Some(found) = told.found(&seen, hides)
    {
        return found;
    }
    // The program has started NVML itself, if it is that which asks.
    let is_started = starter == Starter::Nvml || nvml_uses::start();
    let (mut cards, cut) = is_started.then(nvml_cards).unwrap_or_default();
    let listed = !cards.is_empty();
    if starter == Starter::Driver {
        for device in devices() {
            if let Some(card) = driver_card(device)
                && cards.iter().all(|other| other.uuid != card.uuid)
            {
                cards.push(card);
            }
        }
    }
    Found { complete: listed || !hides, cards, cut }
}

/// Whether the driver answers.
pub(crate) fn driver_is_initialised() -> bool {
    let mut count = 0;
    // SAFETY: the count is writable.
    unsafe { driver::cuDeviceGetCount(&raw mut count) == CUresult::SUCCESS }
}

/// Whether the driver shows any card.
pub(crate) fn driver_has_cards() -> bool {
    devices().next().is_some()
}

/// The device's free memory by NVML, which is started; none where it cannot tell.
pub(crate) fn nvml_free(device: CUdevice) -> Option<Bytes> {
    let uuid = driver_uuid(device)?;
    let part = parts().find(|part| nvml_uuid(part.handle) == Some(uuid))?;
    nvml_memory(part.handle).map(|memory| Bytes(memory.free))
}

/// The UUID of NVML's device.
pub(crate) fn nvml_uuid(device: nvmlDevice_t) -> Option<Uuid> {
    /// `NVML_DEVICE_UUID_V2_BUFFER_SIZE`.
    const LENGTH: c_uint = 96;
    let mut text = [0_u8; LENGTH as usize];
    // SAFETY: the buffer is as long as said.
    let answer = unsafe { nvml::nvmlDeviceGetUUID(device, text.as_mut_ptr().cast(), LENGTH) };
    if answer != nvmlReturn_t::SUCCESS {
        return None;
    }
    let text = CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?;
    text.parse().ok()
}

/// The instances of a card of NVML's that is cut.
pub(crate) fn instances_of(card: nvmlDevice_t) -> impl Iterator<Item = nvmlDevice_t> {
    let cut = is_cut(card);
    cut.then(|| instances(card)).into_iter().flatten().map(|(instance, _)| instance)
}

fn devices() -> impl Iterator<Item = CUdevice> {
    let mut count: c_int = 0;
    // SAFETY: the count is writable.
    let answer = unsafe { driver::cuDeviceGetCount(&raw mut count) };
    let count = if answer == CUresult::SUCCESS { count } else { 0 };
    (0..count).filter_map(|ordinal| {
        let mut device = CUdevice::default();
        // SAFETY: the device is writable.
        (unsafe { driver::cuDeviceGet(&raw mut device, ordinal) } == CUresult::SUCCESS).then_some(device)
    })
}

/// The card's UUID; a MIG instance's own where the driver is new enough to tell.
fn driver_uuid(device: CUdevice) -> Option<Uuid> {
    let mut uuid = CUuuid::default();
    // SAFETY: the UUID is writable.
    let mut answer = unsafe { driver::cuDeviceGetUuid_v2(&raw mut uuid, device) };
    if answer == CUresult::ERROR_NOT_SUPPORTED {
        // SAFETY: as above.
        answer = unsafe { driver::cuDeviceGetUuid(&raw mut uuid, device) };
    }
    (answer == CUresult::SUCCESS).then_some(Uuid(uuid.bytes))
}

fn driver_card(device: CUdevice) -> Option<CardInfo> {
    let uuid = driver_uuid(device)?;
    let mut total = 0_usize;
    // SAFETY: the total is writable.
    if unsafe { driver::cuDeviceTotalMem_v2(&raw mut total, device) } != CUresult::SUCCESS {
        return None;
    }
    Some(CardInfo { uuid, total: Bytes(total as u64), order: driver_order(device) << INSTANCE_BITS })
}

/// The card's place on the bus, as a number.
fn driver_order(device: CUdevice) -> u64 {
    let mut text = [0_u8; 32];
    // SAFETY: the buffer is as long as said.
    let answer = unsafe { driver::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), 32, device) };
    if answer != CUresult::SUCCESS {
        return 0;
    }
    bus_order(&text)
}

/// `domain:bus:device.function`, in hexadecimal, as a number that orders as they do.
fn bus_order(text: &[u8]) -> u64 {
    let digits = text.iter().copied().take_while(|byte| *byte != 0);
    let fields = digits.fold((0_u64, 0_u64), |(order, field), byte| match char::from(byte).to_digit(16) {
        Some(digit) => (order, field << 4 | u64::from(digit)),
        // A separator: a bus and a device have eight bits each at most.
        None => (order << 8 | field, 0),
    });
    fields.0 << 8 | fields.1
}

/// What NVML lists, as programs can use it: a whole card, or an instance of one that is cut.
struct Part {
    handle: nvmlDevice_t,
    /// The card itself.
    card: nvmlDevice_t,
    /// Its place among the card's instances, from 1; 0: the card itself.
    instance: u64,
}

/// The bits of an order that are the instance's.
const INSTANCE_BITS: u32 = CardInfo::INSTANCE.count_ones();

/// What programs can use, and the cards that are cut, by their own names.
fn nvml_cards() -> (Vec<CardInfo>, Vec<Uuid>) {
    let mut cards: Vec<CardInfo> = Vec::new();
    for card in parts().filter_map(|part| nvml_card(&part)) {
        // Drivers before R470 name all instances of a card after it.
        if cards.iter().all(|other| other.uuid != card.uuid) {
            cards.push(card);
        }
    }
    (cards, handles().filter(|card| is_cut(*card)).filter_map(nvml_uuid).collect())
}

fn nvml_card(part: &Part) -> Option<CardInfo> {
    let uuid = nvml_uuid(part.handle)?;
    let total = Bytes(nvml_memory(part.handle)?.total);
    // SAFETY: all fields are numbers.
    let mut pci: nvmlPciInfo_t = unsafe { core::mem::zeroed() };
    // SAFETY: the record is writable.
    let answer = unsafe { nvml::nvmlDeviceGetPciInfo_v3(part.card, &raw mut pci) };
    let order = if answer == nvmlReturn_t::SUCCESS {
        bus_order(&pci.bus_id.map(|byte| byte.to_ne_bytes()[0]))
    } else {
        0
    };
    Some(CardInfo { uuid, total, order: order << INSTANCE_BITS | part.instance })
}

fn parts() -> impl Iterator<Item = Part> {
    handles().flat_map(|card| {
        let cut = is_cut(card);
        let whole = (!cut).then_some(Part { handle: card, card, instance: 0 });
        let instances = cut.then(|| instances(card)).into_iter().flatten();
        whole.into_iter().chain(instances.map(move |(handle, instance)| Part { handle, card, instance }))
    })
}

/// Whether a card is cut into MIG instances.
fn is_cut(card: nvmlDevice_t) -> bool {
    /// `NVML_DEVICE_MIG_ENABLE`.
    const ENABLED: c_uint = 1;
    let (mut current, mut pending) = (0, 0);
    // SAFETY: both modes are writable.
    let answer = unsafe { nvml::nvmlDeviceGetMigMode(card, &raw mut current, &raw mut pending) };
    answer == nvmlReturn_t::SUCCESS && current == ENABLED
}

/// The MIG instances of a card that is cut, with their places from 1.
fn instances(card: nvmlDevice_t) -> impl Iterator<Item = (nvmlDevice_t, u64)> {
    let mut most: c_uint = 0;
    // SAFETY: the count is writable.
    let answer = unsafe { nvml::nvmlDeviceGetMaxMigDeviceCount(card, &raw mut most) };
    let most = if answer == nvmlReturn_t::SUCCESS { most } else { 0 };
    // More than the order has room for have no place; there are 7 at most.
    let places = (0..most).zip(1..=CardInfo::INSTANCE);
    places.filter_map(move |(index, place)| {
        let mut handle = nvmlDevice_t::NULL;
        // SAFETY: the handle is writable.
        let answer = unsafe { nvml::nvmlDeviceGetMigDeviceHandleByIndex(card, index, &raw mut handle) };
        (answer == nvmlReturn_t::SUCCESS).then_some((handle, place))
    })
}

fn nvml_memory(handle: nvmlDevice_t) -> Option<nvmlMemory_t> {
    let mut memory = nvmlMemory_t::default();
    // SAFETY: the record is writable.
    let answer = unsafe { nvml::nvmlDeviceGetMemoryInfo(handle, &raw mut memory) };
    (answer == nvmlReturn_t::SUCCESS).then_some(memory)
}

fn handles() -> impl Iterator<Item = nvmlDevice_t> {
    let mut count: c_uint = 0;
    // SAFETY: the count is writable.
    let answer = unsafe { nvml::nvmlDeviceGetCount_v2(&raw mut count) };
    let count = if answer == nvmlReturn_t::SUCCESS { count } else { 0 };
    (0..count).filter_map(|index| {
        let mut handle = nvmlDevice_t::NULL;
        // SAFETY: the handle is writable.
        let answer = unsafe { nvml::nvmlDeviceGetHandleByIndex_v2(index, &raw mut handle) };
        (answer == nvmlReturn_t::SUCCESS).then_some(handle)
    })
}
