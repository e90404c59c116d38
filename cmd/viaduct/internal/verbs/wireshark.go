package verbs

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/wireshark"
)

func wiresharkCommand(e *shell.Env) *cobra.Command {
	var install, show bool
	var dir string
	c := &cobra.Command{
		Use:   "wireshark --install [--dir DIR] | --print",
		Short: "dissectors for Wireshark: VI/TCP, SDP, Port Mapper, FC-VI",
		Long: `Put Lua dissectors for VI/TCP, SDP over iWARP, its Port Mapper and FC-VI into the folder
where Wireshark and tshark look for the plugins of this user (--install), or print them
(--print). Fields are named as those of decode, with iwarp_sdp for sdp and sdp_portmap for
portmap, since Wireshark knows other protocols by these names; docs/wireshark.md has more.`,
		Example: "viaduct wireshark --install\ntshark -o tcp.try_heuristic_first:TRUE -r x.pcapng -Y iwarp_sdp.mode",
		RunE: func(*cobra.Command, []string) error {
			switch {
			case install == show:
				return shell.Usagef("one of --install and --print is wanted")
			case show && dir != "":
				return shell.Usagef("--dir is for --install")
			case show && e.JSON:
				return shell.Usagef("--print goes with no --json: it prints the dissectors as they are")
			case show:
				var all strings.Builder
				for _, name := range wireshark.Names() {
					b, err := wireshark.File(name)
					if err != nil {
						return err
					}
					fmt.Fprintf(&all, "-- %s\n%s\n", name, b)
				}
				e.Printf("%s", all.String())
				return nil
			}
			if dir == "" {
				var err error
				if dir, err = wireshark.Folder(); err != nil {
					return shell.Hint(err, "name the folder by --dir")
				}
			}
			paths, err := wireshark.Install(dir)
			if err != nil {
				return err
			}
			if e.JSON {
				return e.PrintJSON(struct {
					Files []string `json:"files"`
				}{paths})
			}
			for _, p := range paths {
				e.Printf("%s\n", p)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&install, "install", false, "write the dissectors into the folder of plugins")
	c.Flags().StringVar(&dir, "dir", "", "with --install: write into this `DIR` instead")
	c.Flags().BoolVar(&show, "print", false, "print the dissectors")
	return c
}
