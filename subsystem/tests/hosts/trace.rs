//! Traces: commands of a host, told to who watches, with the time of their stages.

use futures_util::FutureExt;
use nvme::io::IoCommand;

use crate::harness::{TestHost, read, story, write};

#[test]
fn who_watches_a_host_sees_where_the_time_of_its_commands_goes() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        queue.call_out(write(1, 0, 1), vec![1; 4096]).await.ok();
        let host = TestHost::new(1).nqn;
        let mut trace = lab.target.trace(host).expect("a place");
        let mut other = lab.target.trace(TestHost::new(2).nqn).expect("a place");
        queue.call_out(write(1, 8, 2), vec![2; 8192]).await.ok();
        queue.call_in(read(1, 8, 2), 8192).await.ok();
        queue.call(IoCommand::Flush { nsid: 1 }.to_sqe()).await.ok();
        queue.call_in(read(1, u64::MAX >> 1, 1), 4096).await;

        let commands = trace.next(9).await;
        let told: Vec<_> = commands
            .iter()
            .map(|it| {
                (
                    it.operation.as_str(),
                    it.qid,
                    it.nsid,
                    it.lba,
                    it.blocks,
                    it.failed,
                )
            })
            .collect();
        let nowhere = u64::MAX >> 1;
        assert_eq!(
            told,
            [
                ("write", 1, 1, 8, 2, false),
                ("read", 1, 1, 8, 2, false),
                ("flush", 1, 1, 0, 0, false),
                ("read", 1, 1, nowhere, 1, true),
            ]
        );
        for (command, stages) in commands.iter().zip([
            &[
                "receive", "data", "hash", "index", "drive", "journal", "send",
            ][..],
            &["receive", "data", "index", "drive", "hash", "send"],
            &["journal", "send"],
            &["receive", "send"],
        ]) {
            for stage in stages {
                assert!(
                    command.stages_ns.contains_key(*stage),
                    "{stage}: {command:#?}"
                );
            }
            assert_eq!(command.stages_ns.values().sum::<u64>(), command.total_ns);
        }
        assert!(other.next(9).now_or_never().is_none(), "of another host");
        drop(trace);
        queue.call_in(read(1, 8, 2), 8192).await.ok();
        lab.all_buffers_are_back().await;
    });
}
