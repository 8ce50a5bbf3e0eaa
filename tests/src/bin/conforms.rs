//! Does a drive of this machine do what every kind of drive must? `conforms DEVICE`, for the generic character device of an NVMe
//! namespace, whose first blocks are overwritten.

use std::path::Path;
use std::sync::Arc;

use conformance::Races;
use drives::{OpenOptions, PassthroughDrive, block_device_of};

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let [_, device] = &words[..] else {
        panic!("conforms DEVICE");
    };
    let path = Path::new(device);
    let block = block_device_of(path).expect("a generic device of NVMe");
    let options = OpenOptions::default();
    let drive = PassthroughDrive::open(path, &block, &options).expect("it opens");
    let config = reactor::Config {
        buffer_pool: reactor::PoolConfig { bytes: 4 << 20 },
        ..reactor::Config::default()
    };
    let story = async {
        let drive = Arc::new(drive);
        for seed in 0..3 {
            conformance::check(drive.clone(), Races::TheEndIsWhole, seed).await;
        }
    };
    reactor::run(config, story).expect("a reactor");
}
