# Figures of one attached volume, for the comparison with the kernel's own target. arguments: TARGET-ADDRESS SECONDS [NQN]
. /lib/lab.sh
[ -n "${3:-}" ] && NQN=$3
rxe_up; reach "$1"
disk=$(attach "$1" -i 2) || die connect
common="--filename=$disk --size=256m --ioengine=libaio --direct=1 --time_based --runtime=$2 --norandommap --randrepeat=0"
fio_line write128k $common --rw=write --bs=128k --iodepth=8
fio_line read128k $common --rw=read --bs=128k --iodepth=8
fio_line randwrite4k $common --rw=randwrite --bs=4k --iodepth=32
fio_line randread4k $common --rw=randread --bs=4k --iodepth=32
fio_line randread4k-qd1 $common --rw=randread --bs=4k --iodepth=1
rxe_stat
nvme disconnect -n "$NQN"
exit 0
