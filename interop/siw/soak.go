package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// soakDisk is the size in bytes of the disk for -soak. The guest writes and verifies the whole disk
// once.
const soakDisk = 1 << 30

// soakLarge is how long writing and verifying the whole disk may take.
const soakLarge = 30 * time.Minute

// A round writes and verifies roundBytes at roundRate bytes a second, so that a machine without KVM
// can do other work. The first reset occurs while the guest writes, the second during verification.
const (
	roundBytes   = 24 << 20
	roundRate    = 512 << 10
	firstReset   = 20 * time.Second
	secondReset  = 50 * time.Second
	roundLimit   = 10 * time.Minute
	restartEvery = 6 // number of rounds, of which one restarts the target
)

// soakChecks returns the additional checks of -soak, too long for each commit.
func (d *disk) soakChecks() []diskCheck {
	if d.soak == 0 {
		return nil
	}
	return []diskCheck{
		{"fio of 1 GiB, 512 bytes to 1 MiB at depth 16", soakLarge, fio("large", blocks+"--size=1G --iodepth=16"), nil},
		{fmt.Sprintf("verified input and output for %v, with resets and restarts", d.soak), time.Minute, "true", d.endure},
	}
}

// endure runs rounds until the time is over. In every restartEvery-th round the target is killed
// and restarted instead of the first reset.
func (d *disk) endure(ctx context.Context) error {
	round, begin := 0, time.Now()
	for ; time.Since(begin) < d.soak; round++ {
		first := d.reset
		if round%restartEvery == restartEvery-1 {
			first = d.restart
		}
		if err := d.round(ctx, round, first); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	d.logf("%d rounds of %d MiB in %v, %d restarts of the target, %d resets", round, roundBytes>>20,
		time.Since(begin).Round(time.Second), round/restartEvery, 2*round-round/restartEvery)
	return nil
}

// round writes and verifies once, disturbed by first and a reset. Each round has another seed, so
// that fio would detect a block of an earlier round.
func (d *disk) round(ctx context.Context, n int, first func(context.Context) error) error {
	verified := make(chan error, 1)
	go func() {
		_, err := d.guest.run(ctx, roundLimit, fio("round", fmt.Sprintf(
			"--rw=randwrite --bsrange=4k-64k --iodepth=8 --size=%d --rate=%d --randseed=%d", roundBytes, roundRate, n+1)))
		verified <- err
	}()
	time.Sleep(firstReset)
	err := first(ctx)
	time.Sleep(secondReset)
	return errors.Join(err, d.reset(ctx), <-verified)
}

// reset resets the guest's controller and waits for the new connection.
func (d *disk) reset(ctx context.Context) error {
	_, err := d.guest.run(ctx, 5*time.Minute, "set -e\nnvme reset /dev/nvme0 || { sleep 1; nvme reset /dev/nvme0; }\n"+live)
	return err
}

// restart kills and restarts the target, and waits until the guest is connected again.
func (d *disk) restart(ctx context.Context) error {
	d.target.Process.Kill()
	d.target.Wait()
	time.Sleep(time.Second)
	if err := d.start(ctx); err != nil {
		return err
	}
	_, err := d.guest.run(ctx, 5*time.Minute, live)
	return err
}
