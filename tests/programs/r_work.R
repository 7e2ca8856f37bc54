# Vectors, lists and strings on R's heap: `r_work.R RECORDS ROUNDS`; prints what was seen.
arguments <- as.numeric(commandArgs(trailingOnly = TRUE))
count <- arguments[1]
words <- c("alpha", "beta", "gamma", "delta", "orders", "customer", "street", "invoice", "pending", "shipped")
set.seed(20240229, kind = "Mersenne-Twister", normal.kind = "Inversion", sample.kind = "Rejection")

records <- lapply(seq_len(count), function(number) {
  list(id = number, name = paste(words[number %% 10 + 1], sample.int(1000000L, 1L), "of the long street"),
       tags = words[(number * 7 + 0:2) %% 10 + 1], quantity = number %% 17)
})
rows <- count * 4
table <- data.frame(id = seq_len(rows), price = round(runif(rows) * 1000), part = sample.int(97L, rows, TRUE))

for (round in seq_len(arguments[2])) {
  for (at in sample.int(count, count %/% 10)) records[[at]]$quantity <- records[[at]]$quantity + round
  table <- table[order(table$part, table$price, table$id), ]
  sums <- tapply(table$price, table$part, sum)
  quantities <- vapply(records, function(record) record$quantity, 0)
  cat(round, sum(quantities), sum(sums * as.numeric(names(sums))), "\n")
}
cat(head(sort(vapply(records, function(record) record$name, "")), 5), sep = "\n")
