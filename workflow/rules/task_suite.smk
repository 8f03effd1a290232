rule task_suite:
    input:
        unpack(FLOW.inputs("task_suite")),
    output:
        f"{RESULTS}/cells/{{study}}/{{model}}/{{arm}}/{{group}}.jsonl",
    log:
        f"logs/{RUN}/task_suite/{{study}}/{{model}}/{{arm}}/{{group}}.log",
    wildcard_constraints:
        study="task_suite",
    priority: 0
    conda:
        "../../environment.yml"
    threads: FLOW.threads
    resources:
        mem_mb=FLOW.memory("task_suite"),
        gpu=FLOW.gpus(),
    params:
        spec=FLOW.specs("task_suite"),
        code=FLOW.codes("task_suite"),
        named=FLOW.named_inputs("task_suite"),
    shell:
        "kvatlas cell --spec {params.spec:q} --code {params.code} --threads {threads} --input {params.named:q} --output {output} > {log} 2>&1"
