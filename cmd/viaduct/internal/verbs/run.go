package verbs

import (
	"time"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/rdma"
	"viaduct/cmd/viaduct/internal/run"
	"viaduct/cmd/viaduct/internal/shell"
)

func runCommand(e *shell.Env) *cobra.Command {
	o := &run.Options{}
	var check, overRDMA, noCRC, tcp bool
	var devices []string
	c := &cobra.Command{
		Use:   "run [--to PREFIX[:PORT][=WHERE]]... [--listen PORT[=SDPPORT]]... -- PROGRAM [ARGS...] | run --rdma [--device NAME[=ADDRESS,...]]... -- PROGRAM [ARGS...]",
		Short: "run a program with its TCP carried over SDP, or with an RDMA device (--rdma)",
		Long: `Run an unmodified program, with its TCP connections carried over SDP, or with an
RDMA device (--rdma). Both need Linux, and no privileges.

With --rdma, a program that uses libibverbs or librdmacm finds the device siw0, or
the devices of --device. They are served in user space, without a kernel module.
Data is sent as iWARP over TCP. A device whose name begins with rxe is a RoCE
device, and connects only programs under the same command. TCP connections are
not changed.

Without --rdma, the connections that a rule covers are carried over SDP. Without
any rule, these are the connections for which a Port Mapper has an SDP address.
All other connections stay plain TCP, and so do those that cannot be carried. The
program sees the real addresses.

--to PREFIX[:PORT] carries connections to an address, a prefix (192.0.2.0/24) or
everything (*); write an IPv6 prefix with a port in brackets. SDP is spoken at the
same address and port, or with =[HOST]:PORT at that one, or with =portmap at the
one from the Port Mapper. --listen PORT carries connections to the program's
listener at PORT ("any": all of its listeners). SDP is spoken at SDPPORT, or at a
free port that clients learn from a Port Mapper in this process.

The exit status is that of the program, 125 if run itself failed, 126 if the
program cannot be executed, 127 if it does not exist.`,
		Args: cobra.ArbitraryArgs,
		// The supervisor opens captures and metrics. The process waiting for the supervisor does
		// not.
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if run.IsSupervisor() {
				if err := e.Open(); err != nil {
					return &shell.Exit{Code: run.ExitRun, Err: err}
				}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			e.DataOnStdout = !check // the program's output
			if check {
				if !overRDMA {
					return run.Check(e, nil)
				}
				ds, err := rdma.ParseDevices(devices)
				if err != nil {
					return &shell.Exit{Code: run.ExitRun, Err: shell.Usage(err)}
				}
				return run.Check(e, rdmaFindings(ds))
			}
			if len(args) == 0 {
				return &shell.Exit{Code: run.ExitRun, Err: shell.Usagef("a program is missing")}
			}
			o.Program, o.Args = args[0], args
			switch ds, err := rdma.ParseDevices(devices); {
			case !overRDMA && (len(devices) > 0 || noCRC || tcp):
				return &shell.Exit{Code: run.ExitRun, Err: shell.Usagef("--device, --no-crc and --tcp go with --rdma")}
			case !overRDMA:
			case err != nil:
				return &shell.Exit{Code: run.ExitRun, Err: shell.Usage(err)}
			case len(o.To)+len(o.Listen) > 0 || o.SameHost != "" || o.PortMap != "":
				return &shell.Exit{Code: run.ExitRun,
					Err: shell.Usagef("--rdma leaves TCP connections alone: --to, --listen, --portmap and --same-host do not go with it")}
			default:
				o.Service, o.Restarts = rdmaService(ds, noCRC, tcp), rdmaRestarts
			}
			return run.Main(cmd.Context(), e, o)
		},
	}
	f := c.Flags()
	f.SetInterspersed(false) // the flags after the program belong to the program
	f.StringArrayVar(&o.To, "to", nil, "carry connections to `PREFIX[:PORT][=WHERE]`; may be repeated")
	f.StringArrayVar(&o.Listen, "listen", nil,
		"carry connections to the listener at `PORT[=SDPPORT]`, or any; may be repeated")
	f.StringVar(&o.PortMap, "portmap", "", "ask the Port Mapper at `ADDRESS[:PORT]` instead of each host's own")
	f.StringVar(&o.PortMapListen, "portmap-listen", "",
		"be found for --listen by the Port Mapper at the UDP `ADDRESS`, or not, with off (default: that of this host, which this process is if no other is)")
	f.BoolVar(&check, "check", false, "print what this machine allows and run nothing; with --rdma, for RDMA programs")
	f.BoolVar(&overRDMA, "rdma", false, "give the program RDMA devices, over iWARP")
	f.StringArrayVar(&devices, "device", nil,
		"with --rdma: serve device `NAME[=ADDRESS,...]`, of RoCE if it begins with rxe, with these local addresses; may be repeated (default siw0, with all)")
	f.BoolVar(&noCRC, "no-crc", false, "with --rdma: use no MPA CRC if the peer agrees")
	f.BoolVar(&tcp, "tcp", false, "with --rdma: use TCP within this host instead of shared memory")
	f.BoolVar(&o.Require, "require", false, "fail connections that a rule covers and that cannot be carried")
	f.StringVar(&o.SameHost, "same-host", "",
		"use unix socket pairs to programs on this host that also run with this flag; `PORT,...` for some ports only")
	f.Lookup("same-host").NoOptDefVal = "any"
	f.DurationVar(&o.Bound, "bound", 10*time.Millisecond,
		"let a connect call wait `TIME` before it is answered as in progress")
	f.StringVar(&o.Explain, "explain", "", "print the path of each connection, and why, on stderr or into `FILE`")
	f.Lookup("explain").NoOptDefVal = "-"
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		e.DataOnStdout = true
		return &shell.Exit{Code: run.ExitRun, Err: shell.Usage(flagError(err))}
	})
	return c
}
