package verbs

import (
	"context"
	"fmt"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/internal/status"
	"viaduct/iwarp"
	"viaduct/nvme"
)

func nvmeCommand(e *shell.Env) *cobra.Command {
	c := &cobra.Command{
		Use:   "nvme serve",
		Short: "disks that Linux attaches by NVMe over iWARP",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("serve is wanted: %w", unknownVerb(cmd, "verb of nvme", args[0]))
			}
			return shell.Usagef("serve is wanted")
		},
	}
	c.AddCommand(nvmeServeCommand(e))
	return c
}

// An nvmePlan holds the values of the flags.
type nvmePlan struct {
	listen          []string
	nqn             string
	block           int
	readOnly, noCRC bool
	mapped          bool
}

func nvmeServeCommand(e *shell.Env) *cobra.Command {
	var p nvmePlan
	c := &cobra.Command{
		Use:   "serve FILE|DIRECTORY|mem:SIZE ... [--listen HOST:PORT]",
		Short: "serve files, block devices or memory as disks",
		Long: `Serve files, block devices or memory as the namespaces of an NVMe subsystem, the
first as number 1. A directory stands for the files in it. mem:SIZE is zeroed memory,
which is lost with the process. A Linux host with an iWARP device, such as the software
device siw, attaches them:

  rdma link add siw0 type siw netdev eth0
  nvme connect -t rdma -a HOST -s 4420 -n nqn.2026-11.viaduct:disk

SIGHUP makes serve look at the files again: a file that has another size changes its
disk, one that is gone removes it, and one that is new in a directory is added. Hosts
notice by themselves. A file that is added gets a number that no disk had.

Everyone who can connect to the port may read and write the disks.`,
		Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, l := range p.listen {
				if err := checkHostPort(l); err != nil {
					return shell.Usage(fmt.Errorf("--listen: %w", err))
				}
			}
			return runNVMe(cmd.Context(), e, &p, args)
		},
	}
	f := c.Flags()
	f.StringArrayVar(&p.listen, "listen", []string{":4420"}, "listen on `HOST:PORT`; may be repeated")
	f.StringVar(&p.nqn, "nqn", "", "the `NAME` of the subsystem (default: nqn.2026-11.viaduct:disk)")
	f.IntVar(&p.block, "block-size", 512, "`BYTES` of a block: 512, 1024, 2048 or 4096")
	f.BoolVar(&p.readOnly, "read-only", false, "refuse writes")
	f.BoolVar(&p.mapped, "map", false, "map files into memory instead of reading and writing them")
	f.BoolVar(&p.noCRC, "no-crc", false, "use no MPA CRC if the peer agrees")
	return c
}

func runNVMe(ctx context.Context, e *shell.Env, p *nvmePlan, operands []string) error {
	cfg := nvme.Config{NQN: p.nqn, Logger: e.Log, Stream: &iwarp.Config{
		Device: iwarp.NewDevice(iwarp.DeviceConfig{NoCRC: p.noCRC}), Logger: e.Log,
		Prepare: func(q *iwarp.QueuePair) error {
			e.Status.Server().WatchQueuePair(q, status.Hint{Role: "accept"})
			return nil
		},
	}}
	if e.Capture != nil {
		cfg.Stream.WrapConn = func(nc net.Conn) net.Conn { return e.Wrap(nc, false) }
	}
	t, err := nvme.New(cfg)
	if err != nil {
		return shell.Usage(err)
	}
	defer t.Close()
	if err := e.Metrics.Register(nvmeStats{t}); err != nil {
		return err
	}
	d := &nvmeDisks{plan: p, target: t, env: e, operands: operands, served: make(map[diskName]*nvmeDisk)}
	if err := d.add(); err != nil {
		return err
	}
	e.OnHangup("disks", d.reload)
	for _, l := range p.listen {
		at, err := t.Listen(l)
		if err != nil {
			return fmt.Errorf("listen on %s: %w", l, err)
		}
		host, _, _ := net.SplitHostPort(l)
		e.Listening((&addr.URL{Scheme: "iwarp", Host: host}).WithPort(at))
	}
	if err := e.Ready(); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// nvmeStats exports the queues of a target and their counters.
type nvmeStats struct{ t *nvme.Target }

var (
	nvmeQueues   = prometheus.NewDesc("viaduct_nvme_queues", "NVMe queues of hosts, admin queues included.", nil, nil)
	nvmeCommands = prometheus.NewDesc("viaduct_nvme_commands_total", "Commands of hosts.", nil, nil)
	nvmeFailed   = prometheus.NewDesc("viaduct_nvme_commands_failed_total",
		"Commands that were answered by an error.", nil, nil)
	nvmeBytes = prometheus.NewDesc("viaduct_nvme_bytes_total",
		"Bytes of disks that hosts have read or written.", []string{"operation"}, nil)
)

func (s nvmeStats) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{nvmeQueues, nvmeCommands, nvmeFailed, nvmeBytes} {
		ch <- d
	}
}

func (s nvmeStats) Collect(ch chan<- prometheus.Metric) {
	c := s.t.Totals()
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	ch <- prometheus.MustNewConstMetric(nvmeQueues, prometheus.GaugeValue, float64(len(s.t.Queues())))
	count(nvmeCommands, c.Commands)
	count(nvmeFailed, c.Failed)
	count(nvmeBytes, c.ReadBytes, "read")
	count(nvmeBytes, c.WriteBytes, "write")
}
