//! What is told of volumes, against a model of their contents.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use drives::{BLOCK_BYTES, FaultDrive, FaultPlan};
use meta::{Compression, FingerprintFunction, MemoryMedia, MemoryStore, VerifyPolicy};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use reactor::BufferPool;

use crate::metadata::page_map::{PAGE, PAGE_BYTES};
use crate::{
    BOUNCE_BYTES_MIN, Blocking, Engine, EngineConfig, EngineParts, Extents, LABEL_BLOCKS,
    VolumeSpec,
};

const GRAIN: u64 = BLOCK_BYTES as u64;

/// Sub-blocks of a volume: some pages, of which one is cut.
const SUB_BLOCKS_MAX: u64 = 12 * PAGE + 3;

/// Runs a future that waits for nobody else.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    for _ in 0..1_000_000 {
        if let Poll::Ready(value) = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            return value;
        }
    }
    panic!("it waits for something that does not come");
}

/// A pool, and what each sub-block of its volumes holds.
struct Story {
    seed: u64,
    rng: ChaCha8Rng,
    drive: Arc<FaultDrive>,
    media: Arc<MemoryMedia>,
    store: Arc<MemoryStore>,
    buffers: BufferPool,
    engine: Option<Arc<Engine>>,
    /// By name; snapshots have an `@` in theirs.
    volumes: BTreeMap<String, Vec<u64>>,
    names: u32,
    /// Nothing was written while not all blocks were known, which may store a content twice.
    is_stored_once: bool,
    snapshots: u32,
}

impl Story {
    fn new(seed: u64) -> Self {
        let drive = FaultDrive::new(LABEL_BLOCKS + 8000, FaultPlan::default());
        Self {
            seed,
            rng: ChaCha8Rng::seed_from_u64(seed),
            drive: Arc::new(drive),
            media: Arc::new(MemoryMedia::new(4 << 20)),
            store: Arc::new(MemoryStore::new()),
            buffers: BufferPool::new(8 << 20).unwrap(),
            engine: None,
            volumes: BTreeMap::new(),
            names: 0,
            is_stored_once: true,
            snapshots: 0,
        }
    }

    fn open(&mut self) {
        self.engine = None;
        let pages = self.rng.random_range(0..30);
        let parts = EngineParts {
            drives: vec![self.drive.clone()],
            journal: self.media.clone(),
            store: self.store.clone(),
            hash_keys: [5; 32].into(),
            fingerprint: FingerprintFunction::Blake3,
            blocking: Blocking::Yielding,
            boot: None,
            config: EngineConfig {
                bounce_bytes: BOUNCE_BYTES_MIN,
                metadata_cache_bytes: [1 << 30, pages * PAGE_BYTES][self.rng.random_range(0..2)],
                trim_at_once: self.rng.random_range(1..60),
                ..EngineConfig::default()
            },
        };
        self.engine = Some(block_on(Engine::open(parts)).unwrap());
    }

    fn engine(&self) -> Arc<Engine> {
        self.engine.clone().unwrap()
    }

    fn some_volume(&mut self, of: impl Fn(&str) -> bool) -> Option<String> {
        let names: Vec<&String> = self.volumes.keys().filter(|name| of(name)).collect();
        let at = self.rng.random_range(0..names.len().max(1));
        names.get(at).map(|name| (*name).clone())
    }

    fn new_name(&mut self) -> String {
        self.names += 1;
        format!("v{}", self.names)
    }

    fn create(&mut self) {
        let name = self.new_name();
        let cells = self.rng.random_range(1..=SUB_BLOCKS_MAX);
        let spec = VolumeSpec {
            name: name.clone(),
            size_bytes: cells * GRAIN,
            lba_bytes: 4096,
            nsid: None,
            uuid: None,
            dedup: true,
            compression: Compression::Off,
            verify: VerifyPolicy::Trust,
            domain: String::new(),
        };
        block_on(self.engine().create_volume(spec)).unwrap();
        self.volumes.insert(name, vec![0; cells as usize]);
    }

    /// A host writes or trims.
    fn change(&mut self) {
        let Some(name) = self.some_volume(|name| !name.contains('@')) else {
            return;
        };
        let volume = self.engine().volume(&name).unwrap();
        let cells = self.volumes.get_mut(&name).unwrap();
        let first = self.rng.random_range(0..cells.len());
        let count_max = if self.rng.random_range(0..4) == 0 {
            cells.len()
        } else {
            5
        };
        let count = self
            .rng
            .random_range(1..=count_max)
            .min(cells.len() - first);
        let cells = &mut cells[first..first + count];
        let (at, len) = (first as u64 * GRAIN, count as u64 * GRAIN);
        if self.rng.random_range(0..4) == 0 {
            block_on(volume.trim(at, len)).unwrap();
            cells.fill(0);
            return;
        }
        let mut buffer = block_on(self.buffers.alloc(len as usize));
        buffer.fill(0);
        for (block, cell) in buffer.chunks_mut(BLOCK_BYTES).zip(cells) {
            *cell = self.rng.random_range(0..12);
            block[..8].copy_from_slice(&cell.to_le_bytes());
        }
        block_on(volume.write(at, buffer, false)).0.unwrap();
    }

    /// Something of the owner's, or of the background.
    fn act(&mut self) {
        let engine = self.engine();
        let has_room = self.volumes.len() < 9;
        match self.rng.random_range(0..9) {
            0 | 1 if has_room => {
                let Some(of) = self.some_volume(|name| !name.contains('@')) else {
                    return;
                };
                self.names += 1;
                let name = format!("{of}@s{}", self.names);
                block_on(engine.create_snapshots(&[&name], 1)).unwrap();
                self.volumes.insert(name, self.volumes[&of].clone());
                self.snapshots += 1;
            }
            2 if has_room => {
                let Some(of) = self.some_volume(|_| true) else {
                    return;
                };
                let name = self.new_name();
                block_on(engine.clone_volume(&of, &name, None)).unwrap();
                self.volumes.insert(name, self.volumes[&of].clone());
            }
            3 => {
                let Some(snapshot) = self.some_volume(|name| name.contains('@')) else {
                    return;
                };
                block_on(engine.rollback(&snapshot)).unwrap();
                let of = snapshot.split('@').next().unwrap().to_owned();
                self.volumes.insert(of, self.volumes[&snapshot].clone());
            }
            4 => {
                let volumes = &self.volumes;
                let has_none =
                    |name: &str| !volumes.keys().any(|it| it.starts_with(&format!("{name}@")));
                let free: Vec<String> = volumes.keys().filter(|it| has_none(it)).cloned().collect();
                let gone = &free[self.rng.random_range(0..free.len())];
                if self.volumes.len() > 1 {
                    block_on(engine.delete_volume(gone)).unwrap();
                    self.volumes.remove(gone);
                }
            }
            5 => {
                let Some(name) = self.some_volume(|name| !name.contains('@')) else {
                    return;
                };
                let cells = self.rng.random_range(1..=SUB_BLOCKS_MAX);
                block_on(engine.resize_volume(&name, cells * GRAIN)).unwrap();
                let volume = self.volumes.get_mut(&name).unwrap();
                volume.resize(cells as usize, 0);
            }
            6 => block_on(engine.maintain()).unwrap(),
            7 => {
                drop(engine);
                self.open();
                self.is_stored_once = false;
            }
            _ => block_on(engine.load()).unwrap(),
        }
    }

    fn cell(&self, name: &str, at: u64) -> u64 {
        self.volumes[name].get(at as usize).copied().unwrap_or(0)
    }

    /// Compares two volumes while hosts write and the background works; returns how many sub-blocks differ.
    fn compare(&mut self) -> u64 {
        let (Some(a), Some(b)) = (self.some_volume(|_| true), self.some_volume(|_| true)) else {
            return 0;
        };
        let engine = self.engine();
        let (of_a, of_b) = (engine.volume(&a).unwrap(), engine.volume(&b).unwrap());
        let size = of_a.info().size_bytes.max(of_b.info().size_bytes);
        let is_exact = self.is_stored_once;
        let (mut at, mut reported) = (0, 0);
        while at < size {
            let count_max = self.rng.random_range(1..6);
            let from = at / GRAIN;
            let differs = |story: &Self| -> Vec<bool> {
                let all = from..size / GRAIN;
                all.map(|at| story.cell(&a, at) != story.cell(&b, at))
                    .collect()
            };
            let mut was_equal: Vec<bool> = differs(self).iter().map(|it| !it).collect();
            let mut did_differ = differs(self);
            // To the end, or within a part of the first volume.
            let len_max = of_a.info().size_bytes.saturating_sub(at) / GRAIN;
            let is_part = len_max > 0 && self.rng.random_bool(0.5);
            let len = self.rng.random_range(1..=len_max.max(1)) * GRAIN;
            let found: Extents = {
                let look: Pin<Box<dyn Future<Output = _>>> = match is_part {
                    true => Box::pin(of_a.diff_within(&of_b, at, len, count_max)),
                    false => Box::pin(of_a.diff(&of_b, at, count_max)),
                };
                let mut look = look;
                loop {
                    let mut context = Context::from_waker(Waker::noop());
                    if let Poll::Ready(found) = look.as_mut().poll(&mut context) {
                        break found.unwrap();
                    }
                    match self.rng.random_range(0..12) {
                        0..6 => self.change(),
                        6 => block_on(engine.maintain()).unwrap(),
                        _ => {}
                    }
                    for (number, differs) in differs(self).into_iter().enumerate() {
                        was_equal[number] |= !differs;
                        did_differ[number] |= differs;
                    }
                }
            };
            assert!(found.upto > at && found.ranges.len() <= count_max);
            let end = if is_part { at + len } else { size };
            assert!(found.upto <= end && found.ranges.iter().all(|(at, len)| at + len <= end));
            for sub_block in from..found.upto / GRAIN {
                let is_in = |range: &(u64, u64)| {
                    (range.0..range.0 + range.1).contains(&(sub_block * GRAIN))
                };
                let number = (sub_block - from) as usize;
                let is_told = found.ranges.iter().any(is_in);
                reported += u64::from(is_told);
                assert!(
                    is_told || was_equal[number],
                    "seed {}: {a} and {b} were never equal at {sub_block}, and it is not told",
                    self.seed
                );
                assert!(
                    !is_told || !is_exact || did_differ[number],
                    "seed {}: {a} and {b} were always equal at {sub_block}, and it is told",
                    self.seed
                );
            }
            at = found.upto;
        }
        reported
    }

    /// What is stored of a volume is what does not hold zeros.
    fn look_at_extents(&mut self) {
        let Some(name) = self.some_volume(|_| true) else {
            return;
        };
        let volume = self.engine().volume(&name).unwrap();
        let size = volume.info().size_bytes;
        let mut at = 0;
        while at < size {
            let found = block_on(volume.extents(at, size - at, 2)).unwrap();
            for sub_block in at / GRAIN..found.upto / GRAIN {
                let is_in = |range: &(u64, u64)| {
                    (range.0..range.0 + range.1).contains(&(sub_block * GRAIN))
                };
                let is_told = found.ranges.iter().any(is_in);
                assert_eq!(
                    is_told,
                    self.cell(&name, sub_block) != 0,
                    "{name} at {sub_block}"
                );
            }
            at = found.upto;
        }
    }
}

#[test]
fn what_is_not_told_to_differ_is_equal_while_hosts_write_and_maps_are_merged() {
    let count = std::env::var("ONEFOLD_SEEDS").map_or(150, |count| count.parse().unwrap());
    let (mut reported, mut snapshots) = (0, 0);
    for seed in 0..count {
        let mut story = Story::new(seed);
        story.open();
        story.create();
        story.create();
        for _ in 0..60 {
            match story.rng.random_range(0..4) {
                0 => story.act(),
                1 => reported += story.compare(),
                2 => story.look_at_extents(),
                _ => story.change(),
            }
        }
        snapshots += story.snapshots;
    }
    assert!(reported > 1000 && snapshots > 100, "{reported} {snapshots}");
}
