#include "cpu/variants.h"

namespace softmaxd::cpu {

const Variant kVariants[kVariantCount] = {
    {"split_row", "The threads share each row: few long rows.", supports_split_row, run_split_row},
    {"cached_row",
     "A thread a row, read once; its exponentials wait in cache for the row's sum: rows that fit in cache.",
     supports_cached_row, run_cached_row},
    {"reread_row", "A thread a row, read twice; the exponentials are computed again: many rows larger than a cache.",
     supports_reread_row, run_reread_row},
};

}  // namespace softmaxd::cpu
