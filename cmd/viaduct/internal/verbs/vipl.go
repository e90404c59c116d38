package verbs

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/internal/viplconf"
	"viaduct/vi"
)

func viplCommand(e *shell.Env) *cobra.Command {
	c := &cobra.Command{
		Use:   "vipl check",
		Short: "check the NICs of programs that use libvipl",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("check is wanted: %w", unknownVerb(cmd, "verb of vipl", args[0]))
			}
			return shell.Usagef("check is wanted")
		},
	}
	c.AddCommand(viplCheck(e))
	return c
}

// A viplNIC is a NIC as seen by a program, or the reason why the program cannot open the NIC.
type viplNIC struct {
	Name        string `json:"name"`
	Provider    string `json:"provider,omitempty"`
	Address     string `json:"address,omitempty"`
	MaxTransfer uint32 `json:"max_transfer_size,omitempty"`
	NativeMTU   uint32 `json:"native_mtu,omitempty"`
	MaxVI       int    `json:"max_vi,omitempty"`
	MaxDescs    int    `json:"max_descriptors_per_queue,omitempty"`
	Levels      string `json:"reliability,omitempty"`
	Error       string `json:"error,omitempty"`
}

func viplCheck(e *shell.Env) *cobra.Command {
	var config string
	c := &cobra.Command{
		Use:   "check [--config FILE] [NAME...]",
		Short: "open NICs as programs do, and print their properties or the errors",
		Long: `Open NICs by name as programs that use libvipl do. Print their providers, addresses
and limits, or why a program could not open them. Without NAME, these are the NICs
of the configuration, or without a configuration the usual names. The exit status
is 1 if a NIC cannot be opened.`,
		Args: usageArgs(cobra.ArbitraryArgs),
		RunE: func(_ *cobra.Command, names []string) error {
			file := cmp.Or(config, os.Getenv("VIPL_CONFIG"))
			cfg, err := viplconf.Load(file)
			if err != nil {
				return err
			}
			if len(names) == 0 {
				for _, d := range cfg.NICs {
					if d.Name != "*" {
						names = append(names, d.Name)
					}
				}
			}
			if len(names) == 0 {
				names = []string{"/dev/via_lo", "VINIC0", "fcvi0"}
			}
			return viplReport(e, cfg, names)
		},
	}
	c.Flags().StringVar(&config, "config", "", "the configuration `FILE` instead of that of VIPL_CONFIG or "+
		viplconf.DefaultFile)
	return c
}

func viplReport(e *shell.Env, cfg *viplconf.Config, names []string) error {
	var all []viplNIC
	var failed error
	for _, name := range names {
		n, err := viplLook(cfg, name)
		if err != nil {
			n.Error = err.Error()
			failed = errors.Join(failed, fmt.Errorf("%s: %w", name, err))
		}
		all = append(all, n)
	}
	if e.JSON {
		if err := e.PrintJSON(struct {
			NICs []viplNIC `json:"nics"`
		}{all}); err != nil {
			return err
		}
		return viplHint(failed)
	}
	rows := [][]string{{"name", "provider", "address", "transfer", "VIs", "descriptors", "levels"}}
	for _, n := range all {
		if n.Error == "" {
			rows = append(rows, []string{n.Name, n.Provider, n.Address, strconv.Itoa(int(n.MaxTransfer)),
				strconv.Itoa(n.MaxVI), strconv.Itoa(n.MaxDescs), n.Levels})
		}
	}
	if len(rows) > 1 {
		e.Printf("%s", shell.Table(rows))
	}
	return viplHint(failed)
}

// viplHint adds the page about names to an error about a name.
func viplHint(err error) error {
	if errors.Is(err, vi.ErrInvalidParameter) {
		return shell.Hint(err, "docs/libvipl.md has the names of NICs and the lines of the configuration file")
	}
	return err
}

func viplLook(cfg *viplconf.Config, name string) (viplNIC, error) {
	r := viplNIC{Name: name}
	d, err := cfg.Find(name)
	if err != nil {
		return r, err
	}
	r.Provider = d.Provider
	n, _, err := viplconf.New(cfg).Open(name)
	if err != nil {
		return r, err
	}
	defer n.Close()
	a := n.Query()
	r.Address = n.Device().FormatHost(a.LocalAddress)
	r.MaxTransfer, r.NativeMTU, r.MaxVI, r.MaxDescs = a.MaxTransferSize, a.NativeMTU, a.MaxVI, a.MaxDescriptorsPerQueue
	r.Levels = a.ReliabilityLevels.String()
	return r, nil
}
