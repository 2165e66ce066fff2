#include <cstdio>

#include "base/error.h"
#include "cli/commands.h"

namespace fathom::cli {

Command run_command() {
  return {"run", "Generate text in the terminal", [](Parser& p) -> std::function<int()> {
            auto model = std::make_shared<std::string>();
            p.positional("MODEL", *model, "Folder of a checkpoint");
            return [model]() -> int { fail("{}: run is not built yet", *model); };
          }};
}

}  // namespace fathom::cli
